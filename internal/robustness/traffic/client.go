package traffic

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Target is where a service and its sandbox answer.
type Target struct {
	APIs    []string
	Sandbox string
	APIKey  string
}

// Tally counts while traffic flows.
type Tally struct {
	Requests   atomic.Int64 // sent with a key
	Unanswered atomic.Int64 // of these: cut, refused or timed out
	TurnedAway atomic.Int64 // of these: answered "try again with the same key"
	Replays    atomic.Int64 // of these: answered from the record
	Reused     atomic.Int64 // of these: another body under a used key
	Accepted   atomic.Int64 // charges
	Ended      atomic.Int64 // charges
}

// InFlight is how many charges are accepted and have not ended.
func (t *Tally) InFlight() int64 { return t.Accepted.Load() - t.Ended.Load() }

const (
	requestTimeout = 5 * time.Second        // of one request
	retryPause     = 100 * time.Millisecond // before the same request is sent again
	readPause      = 200 * time.Millisecond // between two reads
)

// Traffic is a merchant of one target. It sends to the apis in turn, so duplicates
// meet on both.
type Traffic struct {
	target Target
	http   *http.Client
	tally  *Tally
	turn   atomic.Int64
}

// New returns traffic for a target, which counts in tally.
func New(target Target, tally *Tally) *Traffic {
	return &Traffic{
		target: target, tally: tally,
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100, IdleConnTimeout: time.Minute}},
	}
}

// Answer is the answer to a request with a key.
type Answer struct {
	Status      int
	ContentType string
	Location    string
	Body        string
}

// member is a text member of the body.
func (a Answer) member(name string) string {
	var body map[string]any
	_ = json.Unmarshal([]byte(a.Body), &body)
	text, _ := body[name].(string)
	return text
}

// Problem is the type of a refusal.
func (a Answer) Problem() string { return a.member("type") }

// definitive is false for an answer after which the same request must be retried
// under the same key.
func (a Answer) definitive() bool {
	switch a.Status {
	case http.StatusTooManyRequests, http.StatusTooEarly:
		return false
	case http.StatusConflict:
		return a.Problem() != "/problems/idempotency-key-in-use"
	case http.StatusAccepted:
		// In flight under the policy "202": pending, and no Location yet.
		return a.Location != ""
	default:
		return a.Status < http.StatusInternalServerError
	}
}

// post sends a request until it has a definitive answer or ctx ends.
func (t *Traffic) post(ctx context.Context, path, key string, body []byte) (Answer, error) {
	for {
		t.tally.Requests.Add(1)
		status, header, text, err := t.do(ctx, http.MethodPost, path, key, body)
		if err != nil {
			t.tally.Unanswered.Add(1)
		} else {
			got := Answer{status, header.Get("Content-Type"), header.Get("Location"), string(text)}
			if got.definitive() {
				if header.Get("Idempotent-Replayed") == "true" {
					t.tally.Replays.Add(1)
				}
				return got, nil
			}
			t.tally.TurnedAway.Add(1)
		}
		if err := Wait(ctx, retryPause); err != nil {
			return Answer{}, err
		}
	}
}

// PostAll sends the same request n times at once, each until it has a definitive answer or
// ctx ends, and returns these answers.
func (t *Traffic) PostAll(ctx context.Context, n int, path, key string, body []byte) []Answer {
	var mu sync.Mutex
	var answers []Answer
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if got, err := t.post(ctx, path, key, body); err == nil {
				mu.Lock()
				defer mu.Unlock()
				answers = append(answers, got)
			}
		})
	}
	all.Wait()
	return answers
}

// await reads a resource until it is as wanted. It returns an error if ctx ends.
func (t *Traffic) await(ctx context.Context, path string, into any, wanted func() bool) error {
	for {
		status, _, text, err := t.do(ctx, http.MethodGet, path, "", nil)
		if err == nil && status == http.StatusOK && json.Unmarshal(text, into) == nil && wanted() {
			return nil
		}
		if err := Wait(ctx, readPause); err != nil {
			return err
		}
	}
}

// read reads a resource as it is.
func (t *Traffic) read(ctx context.Context, path string, into any) error {
	return t.await(ctx, path, into, func() bool { return true })
}

func (t *Traffic) do(ctx context.Context, method, path, key string, body []byte) (int, http.Header, []byte, error) {
	api := t.target.APIs[int(t.turn.Add(1))%len(t.target.APIs)]
	header := http.Header{"Authorization": {"Bearer " + t.target.APIKey}}
	if key != "" {
		header["Content-Type"], header["Idempotency-Key"] = []string{"application/json"}, []string{key}
	}
	return exchange(ctx, t.http, requestTimeout, method, api+path, header, body)
}

// exchange sends a request once and reads the whole answer.
func exchange(ctx context.Context, by *http.Client, timeout time.Duration, method, url string, header http.Header, body []byte) (int, http.Header, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, fmt.Errorf("make a request: %w", err)
	}
	request.Header = header
	request.GetBody = nil // else net/http itself retries a request with an Idempotency-Key
	response, err := by.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, response.Header, text, err
}

// Wait waits for a pause, or until ctx ends and then returns its error.
func Wait(ctx context.Context, pause time.Duration) error {
	select {
	case <-time.After(pause):
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
