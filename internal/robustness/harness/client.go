package harness

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	requestTimeout = 5 * time.Second        // of one request
	retryPause     = 50 * time.Millisecond  // before the same request is sent again
	readPause      = 200 * time.Millisecond // between two reads
)

// Client is a merchant of a service. It sends to the apis in turn, so that duplicates meet on
// several. Its methods are safe for concurrent use.
type Client struct {
	// APIs are the origins of the apis.
	APIs []string
	HTTP *http.Client

	// Requests are those that Insist and PostAll have sent.
	Requests   atomic.Int64
	Unanswered atomic.Int64 // of these: cut, refused or timed out
	TurnedAway atomic.Int64 // of these: answered "try again with the same key"
	Replays    atomic.Int64 // of these: answered from the record

	apiKey string
	turn   atomic.Int64
}

// NewClient returns a client of the apis at these URLs.
func NewClient(apiKey string, apis ...string) *Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 100, IdleConnTimeout: time.Minute, DisableCompression: true}
	return &Client{APIs: apis, apiKey: apiKey, HTTP: &http.Client{Transport: transport, Timeout: requestTimeout}}
}

// Answer is the answer to a request with a key.
type Answer struct {
	Status      int
	ContentType string
	Location    string
	Body        string
}

func answerOf(r Response) Answer {
	return Answer{r.Status, r.Header.Get("Content-Type"), r.Header.Get("Location"), string(r.Body)}
}

// Problem is the type of a refusal.
func (a Answer) Problem() string {
	var body struct{ Type string }
	_ = json.Unmarshal([]byte(a.Body), &body) // of another answer it is ""
	return body.Type
}

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
			if got, err := c.Insist(ctx, Request{Path: path, Key: key, Body: body}); err == nil {
				mu.Lock()
				defer mu.Unlock()
				answers = append(answers, answerOf(got))
			}
		})
	}
	all.Wait()
	return answers
}

// Insist sends a request until it has a definitive answer or ctx ends.
func (c *Client) Insist(ctx context.Context, r Request) (Response, error) {
	for {
		c.Requests.Add(1)
		got, err := c.Do(ctx, r)
		switch {
		case err != nil:
			c.Unanswered.Add(1)
		case !answerOf(got).definitive():
			c.TurnedAway.Add(1)
		default:
			if got.Header.Get("Idempotent-Replayed") == "true" {
				c.Replays.Add(1)
			}
			return got, nil
		}
		if ended := Wait(ctx, retryPause); ended != nil {
			return got, errors.Join(fmt.Errorf("no definitive answer to %s, last %d %s: %w", r.Key, got.Status, got.Body, ended), err)
		}
	}
}

// Await reads a resource until it is as wanted. It returns an error if ctx ends.
func (c *Client) Await(ctx context.Context, path string, into any, wanted func() bool) error {
	for {
		r, err := c.Do(ctx, Request{Method: http.MethodGet, Path: path})
		if err == nil && r.Status == http.StatusOK && json.Unmarshal(r.Body, into) == nil && wanted() {
			return nil
		}
		if err := Wait(ctx, readPause); err != nil {
			return err
		}
	}
}

// Request is what a client sends: a POST of a charge where nothing else is said.
type Request struct {
	Method string
	Path   string
	Key    string // none where empty
	Body   []byte
	Header http.Header // wins over what is usual; a name without values is left out
	// To finds an api for each attempt, in place of the next one in turn: one that was killed may be elsewhere.
	To func(context.Context) (string, error)
}

// Do sends a request once.
func (c *Client) Do(ctx context.Context, r Request) (_ Response, err error) {
	api := c.APIs[int(c.turn.Add(1))%len(c.APIs)]
	if r.To != nil {
		if api, err = r.To(ctx); err != nil {
			return Response{}, err
		}
	}
	method, path := cmp.Or(r.Method, http.MethodPost), cmp.Or(r.Path, "/v1/charges")
	request, err := http.NewRequestWithContext(ctx, method, api+path, bytes.NewReader(r.Body))
	if err != nil {
		return Response{}, err
	}
	request.Header.Set("Authorization", "Bearer "+c.apiKey)
	if r.Body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if r.Key != "" {
		request.Header.Set("Idempotency-Key", r.Key)
	}
	for name, values := range r.Header {
		if request.Header[name] = values; len(values) == 0 {
			delete(request.Header, name)
		}
	}
	return Exchange(c.HTTP, request)
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
