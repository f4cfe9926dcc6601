package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	requestTimeout = 5 * time.Second        // of one request
	retryPause     = 100 * time.Millisecond // before the same request is sent again
	readPause      = 200 * time.Millisecond // between two reads
)

// Client is a merchant of a service. It sends to the apis in turn, so that duplicates meet on
// several. Its methods are safe for concurrent use.
type Client struct {
	// The requests with a key that were sent.
	Requests   atomic.Int64
	Unanswered atomic.Int64 // of these: cut, refused or timed out
	TurnedAway atomic.Int64 // of these: answered "try again with the same key"
	Replays    atomic.Int64 // of these: answered from the record

	apis   []string
	apiKey string
	http   *http.Client
	turn   atomic.Int64
}

// NewClient returns a client of the apis at these URLs.
func NewClient(apiKey string, apis ...string) *Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 100, IdleConnTimeout: time.Minute}
	return &Client{apis: apis, apiKey: apiKey, http: &http.Client{Transport: transport, Timeout: requestTimeout}}
}

// Answer is the answer to a request with a key.
type Answer struct {
	Status      int
	ContentType string
	Location    string
	Body        string
}

// Member returns a text member of the body, "" where there is none.
func (a Answer) Member(name string) string {
	var body map[string]any
	_ = json.Unmarshal([]byte(a.Body), &body)
	text, _ := body[name].(string)
	return text
}

// Problem is the type of a refusal.
func (a Answer) Problem() string { return a.Member("type") }

// definitive is false for an answer after which the same request must be retried under the same
// key.
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

// PostAll sends the same request n times at once, each until it has a definitive answer or ctx
// ends, and returns these answers.
func (c *Client) PostAll(ctx context.Context, n int, path, key string, body []byte) []Answer {
	var mu sync.Mutex
	var answers []Answer
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if got, err := c.post(ctx, path, key, body); err == nil {
				mu.Lock()
				defer mu.Unlock()
				answers = append(answers, got)
			}
		})
	}
	all.Wait()
	return answers
}

// post sends a request until it has a definitive answer or ctx ends.
func (c *Client) post(ctx context.Context, path, key string, body []byte) (Answer, error) {
	for {
		c.Requests.Add(1)
		r, err := c.send(ctx, http.MethodPost, path, key, body)
		got := Answer{r.Status, r.Header.Get("Content-Type"), r.Header.Get("Location"), string(r.Body)}
		switch {
		case err != nil:
			c.Unanswered.Add(1)
		case !got.definitive():
			c.TurnedAway.Add(1)
		default:
			if r.Header.Get("Idempotent-Replayed") == "true" {
				c.Replays.Add(1)
			}
			return got, nil
		}
		if err := Wait(ctx, retryPause); err != nil {
			return Answer{}, err
		}
	}
}

// Await reads a resource until it is as wanted. It returns an error if ctx ends.
func (c *Client) Await(ctx context.Context, path string, into any, wanted func() bool) error {
	for {
		r, err := c.send(ctx, http.MethodGet, path, "", nil)
		if err == nil && r.Status == http.StatusOK && json.Unmarshal(r.Body, into) == nil && wanted() {
			return nil
		}
		if err := Wait(ctx, readPause); err != nil {
			return err
		}
	}
}

func (c *Client) send(ctx context.Context, method, path, key string, body []byte) (Response, error) {
	api := c.apis[int(c.turn.Add(1))%len(c.apis)]
	request, err := http.NewRequestWithContext(ctx, method, api+path, bytes.NewReader(body))
	if err != nil {
		return Response{}, err
	}
	request.Header.Set("Authorization", "Bearer "+c.apiKey)
	if key != "" {
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Idempotency-Key", key)
	}
	return Exchange(c.http, request)
}

// Response is what came back, whole.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Exchange sends a request once and reads the whole response.
func Exchange(by *http.Client, request *http.Request) (Response, error) {
	request.GetBody = nil // else net/http itself retries a request with an Idempotency-Key
	response, err := by.Do(request)
	if err != nil {
		return Response{}, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return Response{response.StatusCode, response.Header, body}, err
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
