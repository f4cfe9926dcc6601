package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// client is a merchant. It records the keys that it sent and what was accepted under them.
type client struct {
	*harness.Client

	mu       sync.Mutex
	keys     []string
	accepted map[string]answer
}

type (
	request = harness.Request
	answer  = harness.Response
)

// newClient returns a client that is patient: a program that dies closes its
// connections, so a client waits only for a machine that is busy.
func newClient(apis []string, apiKey string) *client {
	c := &client{Client: harness.NewClient(apiKey, apis...), accepted: map[string]answer{}}
	c.HTTP.Timeout = testrun.Stall
	return c
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

// insist retries a request under the same key until it has a definitive answer. The error is errDiffers where
// the key had another answer before.
func (c *client) insist(ctx context.Context, r request) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, testrun.Stall)
	defer cancel()
	if r.Key != "" {
		c.mu.Lock()
		c.keys = append(c.keys, r.Key)
		c.mu.Unlock()
	}
	got, err := c.Insist(ctx, r)
	if err == nil {
		err = c.note(r.Key, got)
	}
	return got, err
}

// get reads a path until it is answered, and decodes its JSON.
func (c *client) get(ctx context.Context, path string, into any) error {
	got, err := c.insist(ctx, request{Method: http.MethodGet, Path: path})
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
