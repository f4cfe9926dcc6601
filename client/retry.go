package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/payonce/payonce/client/api"
)

// RefusalError is a refusal of the api: its answer to one send. One with the RetryWith
// "same-key" was not stored, and says nothing of earlier sends that had no answer: mend what it
// names and repeat the operation.
type RefusalError struct{ api.Problem }

// Error names the refusal.
func (r *RefusalError) Error() string { return fmt.Sprintf("%s: %s", r.Title, r.Detail) }

const (
	sendTimeout   = 30 * time.Second // of one send, with its answer
	shortestPause = 200 * time.Millisecond
	longestPause  = 10 * time.Second
	longestAnswer = 64 << 20
)

// retrier sends a request until it has an answer that ends it, or until its context ends.
type retrier struct{ http *http.Client }

func newRetrier() retrier {
	return retrier{&http.Client{
		Timeout: sendTimeout,
		// A redirect would send the request to an address that is not the configured one.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Do returns an answer whose body has arrived.
func (r retrier) Do(request *http.Request) (*http.Response, error) {
	pauses := &backoff.ExponentialBackOff{
		InitialInterval: shortestPause, MaxInterval: longestPause,
		RandomizationFactor: backoff.DefaultRandomizationFactor, Multiplier: backoff.DefaultMultiplier,
	}
	var last error
	answer, err := backoff.Retry(request.Context(), func() (*http.Response, error) {
		var answer *http.Response
		answer, last = r.send(request)
		return answer, last
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	if err != nil {
		return nil, errors.Join(err, last)
	}
	return answer, nil
}

// send sends the request once. An error says that it is to be sent again.
func (r retrier) send(request *http.Request) (*http.Response, error) {
	again := request.Clone(request.Context())
	if request.GetBody != nil {
		body, err := request.GetBody()
		if err != nil {
			return nil, backoff.Permanent(err)
		}
		again.Body = body
	}
	answer, err := r.http.Do(again)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, longestAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	answer.Body = io.NopCloser(bytes.NewReader(body))
	if ends(answer.StatusCode, body) {
		return answer, nil
	}
	if seconds := secondsUntil(answer.Header.Get("Retry-After")); seconds > 0 {
		return nil, errors.Join(fmt.Errorf("answered %s", answer.Status), backoff.RetryAfter(seconds))
	}
	return nil, fmt.Errorf("answered %s", answer.Status)
}

// secondsUntil reads a Retry-After: seconds, or a date.
func secondsUntil(retryAfter string) int {
	if at, err := http.ParseTime(retryAfter); err == nil {
		return int(time.Until(at)/time.Second) + 1 //nolint:forbidigo // the date is compared with this machine's clock
	}
	seconds, _ := strconv.Atoi(retryAfter)
	return seconds
}

// ends reports whether an answer ends a request. A proxy may have answered in the api's place.
func ends(status int, body []byte) bool {
	switch {
	case status == http.StatusAccepted:
		return string(bytes.TrimSpace(body)) != "{}" // else a request under the key is in flight
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests, status >= 500:
		return false
	}
	var problem api.Problem
	return json.Unmarshal(body, &problem) != nil || !problem.Retryable
}

// answered is an answer that has arrived.
type answered interface {
	Status() string
	StatusCode() int
	GetBody() []byte
}

// read decodes the answer of an operation.
func read[T any](operation string, answer answered, err error) (result T, _ error) {
	if err != nil {
		return result, fmt.Errorf("the outcome of %q is unknown: %w", operation, err)
	}
	if answer.StatusCode()/100 == 2 {
		if err := json.Unmarshal(answer.GetBody(), &result); err != nil {
			return result, fmt.Errorf("the outcome of %q is unknown: %w", operation, err)
		}
		return result, nil
	}
	refusal := &RefusalError{}
	if json.Unmarshal(answer.GetBody(), &refusal.Problem) != nil || refusal.Type == "" {
		return result, fmt.Errorf("the outcome of %q is unknown: answered %s, and not by payonce", operation, answer.Status())
	}
	return result, fmt.Errorf("%q is refused: %w", operation, refusal)
}
