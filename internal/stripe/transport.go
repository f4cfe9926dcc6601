package stripe

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	// A page of a hundred intents is well under a megabyte.
	maxAnswerBytes = 8 << 20
	// One idle connection for every call that may be under way at once.
	maxIdleConns = 512
	// Below the idle time-out of the usual load balancers, since a request
	// that meets a closed connection is not repeated here.
	idleConnTimeout = 30 * time.Second
	// Longer than a provider is busy, and short enough for a mistake of its.
	maxRetryAfter = 10 * time.Minute
)

var errAnswerTooLarge = errors.New("the answer is larger than 8 MiB")

// newTransport returns a transport that speaks HTTP/1.1 only, so that a
// connection that stalls or dies takes a single call with it.
func newTransport() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		Protocols:           protocols,
		MaxIdleConnsPerHost: maxIdleConns,
		IdleConnTimeout:     idleConnTimeout,
	}
}

// onceTransport sends a request at most once. net/http repeats a POST that
// carries an Idempotency-Key when a reused connection dies without an answer,
// provided that it can read the body again: without GetBody it cannot.
type onceTransport struct {
	next    http.RoundTripper
	observe func(ctx context.Context, call string) (answered func(Answered))
}

func (t onceTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	once := r.WithContext(r.Context())
	once.GetBody = nil
	answered := func(Answered) {}
	if t.observe != nil {
		answered = t.observe(r.Context(), callName(r))
	}
	res, err := t.next.RoundTrip(once)
	if err != nil {
		answered(Answered{})
		return nil, err
	}
	answered(Answered{Status: res.StatusCode, Replayed: res.Header.Get("Idempotent-Replayed") == "true"})
	if a, ok := r.Context().Value(answerKey{}).(*answer); ok {
		a.status = res.StatusCode
		a.header = res.Header
		res.Body = &answerBody{ReadCloser: res.Body, left: maxAnswerBytes, answer: a}
	}
	return res, nil
}

// answer is what was received for one request, whatever stripe-go makes of it.
// Its zero value means that no answer came.
type answer struct {
	status  int
	header  http.Header
	readErr error // why the body ended early, nil if it did not
}

type answerKey struct{}

// observe returns a context under which the next request fills a.
func observe(ctx context.Context, a *answer) context.Context {
	return context.WithValue(ctx, answerKey{}, a)
}

func (a *answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

// retryAfter is how long the answer asks to be left alone, at most
// maxRetryAfter, or 0 if it does not say. A date is measured against the answer's own Date, so
// that no clock of ours is asked.
func (a *answer) retryAfter() time.Duration {
	v := a.header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(v, 10, 64); err == nil {
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	}
	until, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	sent, err := http.ParseTime(a.header.Get("Date"))
	if err != nil {
		return 0
	}
	return min(max(until.Sub(sent), 0), maxRetryAfter)
}

// answerBody bounds the body and notes why reading it ended early.
type answerBody struct {
	io.ReadCloser
	left   int64
	answer *answer
}

func (b *answerBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		b.answer.readErr = errAnswerTooLarge
		return 0, errAnswerTooLarge
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		b.answer.readErr = err
	}
	return n, err
}
