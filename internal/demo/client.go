package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// requestPatience is how long one request waits for its answer.
const requestPatience = 5 * time.Second

// client is a merchant who never gives up: a request without a definitive
// answer is sent again with the same key, to the next api.
type client struct {
	house house
	http  *http.Client
	tally *tally
	turn  atomic.Int64
	pause time.Duration // before the first retry
}

func newClient(house house, tally *tally) *client {
	return &client{
		house: house,
		tally: tally,
		pause: 50 * time.Millisecond,
		http:  &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100, IdleConnTimeout: time.Minute}},
	}
}

// answer is what a request with a key was answered.
type answer struct {
	Status      int
	ContentType string
	Location    string
	Body        string
}

// problem is the type of a refusal.
func (a answer) problem() string {
	var body struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal([]byte(a.Body), &body)
	return body.Type
}

// definitive is false for an answer after which the same request with the same
// key must be sent again.
func (a answer) definitive() bool {
	switch a.Status {
	case http.StatusTooManyRequests, http.StatusTooEarly:
		return false
	case http.StatusConflict:
		return a.problem() != "/problems/idempotency-key-in-use"
	case http.StatusAccepted:
		// In flight under the policy "202": pending, and no Location yet.
		return a.Location != ""
	default:
		return a.Status < http.StatusInternalServerError
	}
}

// post sends a request until it is answered for good or ctx ends.
func (c *client) post(ctx context.Context, path, key string, body []byte) (answer, error) {
	for pause := c.pause; ; pause = min(2*pause, time.Second) {
		c.tally.requests.Add(1)
		got, replayed, err := c.postOnce(ctx, path, key, body)
		switch {
		case err != nil:
			c.tally.unanswered.Add(1)
		case !got.definitive():
			c.tally.turnedAway.Add(1)
		default:
			if replayed {
				c.tally.replays.Add(1)
			}
			return got, nil
		}
		if ended := wait(ctx, pause); ended != nil {
			return answer{}, ended
		}
	}
}

func (c *client) postOnce(ctx context.Context, path, key string, body []byte) (got answer, replayed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.next()+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, false, err
	}
	// Else net/http itself sends a request with an Idempotency-Key again.
	request.GetBody = nil
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	return c.do(request)
}

// get reads a resource; it asks again until it has it or ctx ends.
func (c *client) get(ctx context.Context, path string, into any) error {
	for {
		if err := c.getOnce(ctx, path, into); err == nil {
			return nil
		}
		if ended := wait(ctx, 200*time.Millisecond); ended != nil {
			return ended
		}
	}
}

func (c *client) getOnce(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.next()+path, http.NoBody)
	if err != nil {
		return err
	}
	got, _, err := c.do(request)
	if err != nil {
		return err
	}
	if got.Status != http.StatusOK {
		return fmt.Errorf("get %s: answered %d", path, got.Status)
	}
	return json.Unmarshal([]byte(got.Body), into)
}

func (c *client) do(request *http.Request) (got answer, replayed bool, err error) {
	request.Header.Set("Authorization", "Bearer "+c.house.apiKey)
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, false, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}, false, err
	}
	return answer{
		Status:      response.StatusCode,
		ContentType: response.Header.Get("Content-Type"),
		Location:    response.Header.Get("Location"),
		Body:        string(text),
	}, response.Header.Get("Idempotent-Replayed") == "true", nil
}

// next takes the apis in turn, so that duplicates meet on both.
func (c *client) next() string {
	n := c.turn.Add(1)
	return c.house.apis[int(n)%len(c.house.apis)]
}
