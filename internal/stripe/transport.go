package stripe

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// A page of a hundred intents is well under a megabyte.
	maxAnswerBytes = 8 << 20
	// One idle connection for every call that may be in flight.
	maxIdleConns = 512
	// Below the idle time-out of the usual load balancers, since a request
	// that meets a closed connection is not repeated here.
	idleConnTimeout = 30 * time.Second
	// A longer wait would be a mistake of the provider's.
	maxRetryAfter = 10 * time.Minute
)

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
	a, _ := r.Context().Value(answerKey{}).(*Answered)
	answered := func(Answered) {}
	if t.observe != nil {
		answered = t.observe(r.Context(), callName(r))
	}
	res, err := t.next.RoundTrip(once)
	if err == nil {
		*a = Answered{Status: res.StatusCode, Replayed: res.Header.Get("Idempotent-Replayed") == "true"}
		res.Body = http.MaxBytesReader(nil, res.Body, maxAnswerBytes)
	}
	answered(*a)
	return res, err
}

// answerKey is the key under which a request's context holds its *Answered.
type answerKey struct{}

// Answered is what came back for a request, once its headers have arrived.
type Answered struct {
	Status   int  // 0: no answer came
	Replayed bool // the provider had answered this idempotency key before
}

// retryAfter is how long an answer asks to wait: at most maxRetryAfter, 0 if it
// does not say. A date is compared with the answer's own Date, not with our clock.
func retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(v, 10, 64); err == nil {
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	}
	until, err := http.ParseTime(v)
	sent, errSent := http.ParseTime(h.Get("Date"))
	if err != nil || errSent != nil {
		return 0
	}
	return min(max(until.Sub(sent), 0), maxRetryAfter)
}

// Calls are the names of the requests that a client sends.
func Calls() []string {
	return []string{
		"GET payment_intents", "POST payment_intents", "GET payment_intents/id",
		"POST payment_intents/id/confirm", "POST payment_intents/id/cancel",
		"GET refunds", "POST refunds",
	}
}

// callName is the request's name: the method and the path, with id in place of
// ids.
func callName(r *http.Request) string {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	if len(parts) > 1 {
		parts[1] = "id"
	}
	return r.Method + " " + strings.Join(parts, "/")
}
