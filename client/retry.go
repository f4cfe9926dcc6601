package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
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

// answer is an answer that has arrived.
type answer struct {
	status string
	code   int
	body   []byte
}

// do sends a request until it has an answer that ends it, or until ctx ends, and reads that.
func (c *Client) do(ctx context.Context, method, path string, header http.Header, body []byte, into any) error {
	pauses := &backoff.ExponentialBackOff{
		InitialInterval: shortestPause, MaxInterval: longestPause,
		RandomizationFactor: backoff.DefaultRandomizationFactor, Multiplier: backoff.DefaultMultiplier,
	}
	var last error
	got, err := backoff.Retry(ctx, func() (got answer, err error) {
		got, last = c.send(ctx, method, path, header, body)
		return got, last
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	if err != nil {
		return errors.Join(err, last)
	}
	if got.code/100 == 2 {
		return json.Unmarshal(got.body, into)
	}
	refusal := &RefusalError{}
	if json.Unmarshal(got.body, &refusal.Problem) != nil || refusal.Type == "" {
		return fmt.Errorf("answered %s, and not by payonce", got.status)
	}
	return refusal
}

// send sends the request once. An error says that it is to be sent again.
func (c *Client) send(ctx context.Context, method, path string, header http.Header, body []byte) (got answer, err error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return got, backoff.Permanent(err)
	}
	maps.Copy(request.Header, header)
	request.Header.Set("Authorization", "Bearer "+c.apiKey)
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return got, err
	}
	defer func() { _ = response.Body.Close() }()
	got = answer{status: response.Status, code: response.StatusCode}
	if got.body, err = io.ReadAll(io.LimitReader(response.Body, longestAnswer)); err != nil {
		return got, fmt.Errorf("read the answer: %w", err)
	}
	if ends(got.code, got.body) {
		return got, nil
	}
	if seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")); seconds > 0 {
		return got, errors.Join(fmt.Errorf("answered %s", got.status), backoff.RetryAfter(seconds))
	}
	return got, fmt.Errorf("answered %s", got.status)
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
