package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// client sends requests for a merchant. It records the keys that it sent and what was
// accepted under them.
type client struct {
	apis    []string
	apiKey  string
	http    *http.Client
	turn    atomic.Int64
	retries atomic.Int64 // of all requests

	mu       sync.Mutex
	keys     []string
	accepted map[string]answer
}

// newClient returns a client that is patient: a program that dies closes its
// connections, so a client waits only for a machine that is busy.
func newClient(apis []string, apiKey string) *client {
	return &client{
		apis: apis, apiKey: apiKey, accepted: map[string]answer{},
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}, Timeout: testrun.Stall},
	}
}

// request is what a client sends. Zero values: a POST of a charge with the
// client's key, to the apis in turn.
type request struct {
	method string
	path   string
	key    string // none where empty
	body   []byte
	header http.Header // wins over what is usual; a name without values is left out
	to     address
}

// address finds an api for each attempt: one that was killed may be elsewhere.
type address func(context.Context) (string, error)

func at(url string) address { return func(context.Context) (string, error) { return url, nil } }

type answer = harness.Response

// do sends a request once.
func (c *client) do(ctx context.Context, r request) (answer, error) {
	api := c.apis[int(c.turn.Add(1))%len(c.apis)]
	if r.to != nil {
		var err error
		if api, err = r.to(ctx); err != nil {
			return answer{}, err
		}
	}
	path := cmp.Or(r.path, "/v1/charges")
	request, err := http.NewRequestWithContext(ctx, cmp.Or(r.method, http.MethodPost), api+path, bytes.NewReader(r.body))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Authorization", "Bearer "+c.apiKey)
	if r.body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		request.Header.Set("Idempotency-Key", r.key)
		c.mu.Lock()
		c.keys = append(c.keys, r.key)
		c.mu.Unlock()
	}
	for name, values := range r.header {
		if request.Header[name] = values; len(values) == 0 {
			delete(request.Header, name)
		}
	}
	return harness.Exchange(c.http, request)
}

// errDiffers says that one key was accepted with two answers.
var errDiffers = errors.New("one key has two answers")

// note records an accepted answer, which must equal the first one under its key.
func (c *client) note(key string, got answer) error {
	if got.Status != http.StatusAccepted || key == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first, known := c.accepted[key]
	if !known {
		c.accepted[key] = got
		return nil
	}
	if !bytes.Equal(first.Body, got.Body) {
		return fmt.Errorf("%w, %s and %s", errDiffers, first.Body, got.Body)
	}
	for _, name := range []string{"Content-Type", "Location", "Idempotency-Key", "Idempotency-Expires"} {
		if x, y := first.Header.Get(name), got.Header.Get(name); x != y {
			return fmt.Errorf("%w, with %s %q and %q", errDiffers, name, x, y)
		}
	}
	return nil
}

// insist retries a request under the same key until it has a definitive answer: it
// retries what is unanswered, unavailable or in flight. The error is errDiffers where
// the key had another answer before.
func (c *client) insist(ctx context.Context, r request) (got answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, testrun.Stall)
	defer cancel()
	for {
		got, err = c.do(ctx, r)
		if err == nil && definitive(got) {
			return got, c.note(r.key, got)
		}
		if ctx.Err() != nil {
			return got, errors.Join(fmt.Errorf("no definitive answer to %s, last %d %s: %w", r.key, got.Status, got.Body, ctx.Err()), err)
		}
		c.retries.Add(1)
		pause(ctx, 20*time.Millisecond)
	}
}

func definitive(a answer) bool {
	switch a.Status {
	case http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	default:
		return a.Status < http.StatusInternalServerError
	}
}

// get reads a path until it is answered, and decodes its JSON.
func (c *client) get(ctx context.Context, path string, into any) error {
	got, err := c.insist(ctx, request{method: http.MethodGet, path: path})
	if err == nil && got.Status == http.StatusOK {
		err = json.Unmarshal(got.Body, into)
	}
	if err != nil || got.Status != http.StatusOK {
		return fmt.Errorf("%s is answered %d %s: %w", path, got.Status, got.Body, err)
	}
	return nil
}

// insist sends a request until it has a definitive answer.
func (d *deployment) insist(t *testing.T, r request) answer {
	t.Helper()
	got, err := d.client.insist(t.Context(), r)
	must(t, err)
	return got
}

var (
	must    = testrun.Must
	bounded = testrun.Bounded
)
