package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// books is what the outside world knows: the sandbox's GET /books.
type books struct {
	Captures             []capture      `json:"captures"`
	Refunds              []refund       `json:"refunds"`
	Notifications        []notification `json:"notifications"`
	Requests             int            `json:"requests"`
	DuplicatesSuppressed int            `json:"duplicates_suppressed"`
}

type capture struct {
	Reference string `json:"reference"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
}

type refund struct {
	Reference string `json:"reference"`
	Amount    int64  `json:"amount"`
}

type notification struct {
	Reference  string `json:"reference"`
	Type       string `json:"type"`
	Deliveries int    `json:"deliveries"`
	Effects    int    `json:"effects"`
}

// faults are the probabilities with which a provider or shop request goes wrong.
type faults struct {
	Seed       uint64  `json:"seed"`
	DropBefore float64 `json:"drop_before"`
	DropAfter  float64 `json:"drop_after"`
	Error500   float64 `json:"error_500"`
	Slow       slow    `json:"slow"`
}

type slow struct {
	P            float64 `json:"p"`
	Milliseconds int     `json:"ms"`
}

// sandboxClient speaks to the sandbox's controls, which no fault touches. While
// the database restarts they fail, so each call is tried again for a while;
// all of them may be repeated without harm.
type sandboxClient struct{ url string }

// repeatPatience is how long one call to repeat the webhooks waits: the sandbox
// takes up to 20 s for it.
const repeatPatience = 25 * time.Second

func (s sandboxClient) books(ctx context.Context) (books, error) {
	var read books
	answer, err := s.call(ctx, requestPatience, http.MethodGet, "/books", nil)
	if err != nil {
		return books{}, err
	}
	if err := json.Unmarshal(answer, &read); err != nil {
		return books{}, fmt.Errorf("read the sandbox's books: %w", err)
	}
	return read, nil
}

func (s sandboxClient) setFaults(ctx context.Context, faults faults) error {
	_, err := s.call(ctx, requestPatience, http.MethodPut, "/faults", encode(faults))
	return err
}

func (s sandboxClient) clearFaults(ctx context.Context) error {
	_, err := s.call(ctx, requestPatience, http.MethodDelete, "/faults", nil)
	return err
}

// repeated is what became of the webhooks that the provider sent again.
type repeated struct {
	Events     int `json:"events"`
	Deliveries int `json:"deliveries"`
	Sent       int `json:"sent"`
	Delivered  int `json:"delivered"`
}

// repeatWebhooks has the provider send every event that it sent so far again,
// as often, and returns when it has tried to.
func (s sandboxClient) repeatWebhooks(ctx context.Context, times int) (repeated, error) {
	var done repeated
	answer, err := s.call(ctx, repeatPatience, http.MethodPost, "/duplicate-webhooks", encode(map[string]int{"times": times}))
	if err != nil {
		return repeated{}, err
	}
	if err := json.Unmarshal(answer, &done); err != nil {
		return repeated{}, fmt.Errorf("read what became of the webhooks: %w", err)
	}
	return done, nil
}

func (s sandboxClient) call(ctx context.Context, patience time.Duration, method, path string, body []byte) ([]byte, error) {
	const (
		tries = 40
		pause = 250 * time.Millisecond
	)
	var answer []byte
	var err error
	for range tries {
		if answer, err = s.once(ctx, patience, method, path, body); err == nil {
			return answer, nil
		}
		if ended := wait(ctx, pause); ended != nil {
			return nil, ended
		}
	}
	return nil, fmt.Errorf("ask the sandbox: %w", err)
}

func (s sandboxClient) once(ctx context.Context, patience time.Duration, method, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer)
	}
	return answer, nil
}

func (b books) capturesByCharge() map[string][]capture {
	found := map[string][]capture{}
	for _, c := range b.Captures {
		found[c.Reference] = append(found[c.Reference], c)
	}
	return found
}

func (b books) refundsByReference() map[string][]refund {
	found := map[string][]refund{}
	for _, r := range b.Refunds {
		found[r.Reference] = append(found[r.Reference], r)
	}
	return found
}

func (b books) notificationsByReference() map[string][]notification {
	found := map[string][]notification{}
	for _, n := range b.Notifications {
		found[n.Reference] = append(found[n.Reference], n)
	}
	return found
}

// redelivered is how many deliveries there were beyond the first of each.
func (b books) redelivered() int {
	n := 0
	for _, told := range b.Notifications {
		n += max(0, told.Deliveries-1)
	}
	return n
}
