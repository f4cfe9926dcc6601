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

// do sends a request until it has an answer that ends it, or until ctx ends, and reads that.
func (c *Client) do(ctx context.Context, method, path string, header http.Header, body []byte, into any) error {
	pauses := &backoff.ExponentialBackOff{
		InitialInterval: shortestPause, MaxInterval: longestPause,
		RandomizationFactor: backoff.DefaultRandomizationFactor, Multiplier: backoff.DefaultMultiplier,
	}
	var last error // of a send
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		last = c.send(ctx, method, path, header, body, into)
		return struct{}{}, last
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	if _, permanent := errors.AsType[*backoff.PermanentError](last); permanent || last == nil {
		return err
	}
	return errors.Join(err, last) // ctx has ended, and last is why the request was still sent
}

// send sends the request once, and reads an answer that ends it. An error is permanent if the request ends with it, else
// the request is to be sent again.
func (c *Client) send(ctx context.Context, method, path string, header http.Header, body []byte, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return backoff.Permanent(err)
	}
	maps.Copy(request.Header, header)
	request.Header.Set("Authorization", "Bearer "+c.apiKey)
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, longestAnswer))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	refusal := &RefusalError{}
	byAPI := json.Unmarshal(text, &refusal.Problem) == nil && refusal.Type != "" // else a proxy may have answered in its place
	switch code := response.StatusCode; {
	case code == http.StatusAccepted && string(bytes.TrimSpace(text)) == "{}", // a request under the key is in flight
		code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500,
		byAPI && refusal.Retryable:
	case code/100 == 2:
		return backoff.Permanent(json.Unmarshal(text, into))
	case byAPI:
		return backoff.Permanent(refusal)
	default:
		return backoff.Permanent(fmt.Errorf("answered %s, and not by payonce", response.Status))
	}
	err = fmt.Errorf("answered %s", response.Status)
	if seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")); seconds > 0 {
		return errors.Join(err, backoff.RetryAfter(seconds))
	}
	return err
}
