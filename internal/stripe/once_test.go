package stripe_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	stripego "github.com/stripe/stripe-go/v85"
)

// oneGoodThenCut answers the first request and cuts the connection, which then
// is a reused one, at the others.
func oneGoodThenCut(good string) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			answer(200, good)(w, r)
			return
		}
		cut("")(w, r)
	}
}

func TestCall_isSentOnceOnAReusedConnectionThatIsCut(t *testing.T) {
	t.Parallel()
	for name := range calls(nil) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, oneGoodThenCut(intentJSON()))
			c := newClient(t, p.URL, 0)
			if _, err := c.RetrieveIntent(t.Context(), "pi_1"); err != nil {
				t.Fatalf("first request: %v", err)
			}
			zero, err := calls(c)[name](t.Context())
			if kinds(err) != "unavailable" || !zero {
				t.Errorf("error %v, zero value %t, want unavailable and true", err, zero)
			}
			if got := p.requests.Load(); got != 2 {
				t.Errorf("the provider saw %d requests, want 2", got)
			}
		})
	}
}

func TestCall_sendsItsKeyAndNoTelemetry(t *testing.T) {
	t.Parallel()
	var telemetry, keys atomic.Int64
	p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Stripe-Client-Telemetry") != "" {
			telemetry.Add(1)
		}
		if r.Header.Get("Authorization") == "Bearer "+secretKey {
			keys.Add(1)
		}
		answer(200, intentJSON())(w, r)
	})
	c := newClient(t, p.URL, 0)
	for range 3 {
		if _, err := c.RetrieveIntent(t.Context(), "pi_1"); err != nil {
			t.Fatal(err)
		}
	}
	if telemetry.Load() != 0 || keys.Load() != 3 {
		t.Errorf("%d requests with telemetry, %d with the key; want 0 and 3", telemetry.Load(), keys.Load())
	}
	if stripego.Key != "" {
		t.Error("stripe-go's package-level key was set")
	}
}

// A call whose key or id cannot be sent reaches no path at all: stripe-go would
// make a key up, trim it, or turn a retrieve into a list.
func TestCall_withAnUnusableKeyOrIDIsNotSent(t *testing.T) {
	t.Parallel()
	p := newProvider(t, answer(200, intentJSON()))
	c := newClient(t, p.URL, 0)
	for name, call := range map[string]func(context.Context) error{
		"no key":             func(ctx context.Context) error { _, err := c.ConfirmIntent(ctx, "", "pi_1"); return err },
		"a key with a space": func(ctx context.Context) error { _, err := c.ConfirmIntent(ctx, " key", "pi_1"); return err },
		"a key with a line":  func(ctx context.Context) error { _, err := c.ConfirmIntent(ctx, "key\r\nX: y", "pi_1"); return err },
		"a key beyond ASCII": func(ctx context.Context) error { _, err := c.ConfirmIntent(ctx, "ключ", "pi_1"); return err },
		"a key of 256 characters": func(ctx context.Context) error {
			_, err := c.ConfirmIntent(ctx, strings.Repeat("k", 256), "pi_1")
			return err
		},
		"an intent without an id":  func(ctx context.Context) error { _, err := c.RetrieveIntent(ctx, ""); return err },
		"an id that climbs":        func(ctx context.Context) error { _, err := c.RetrieveIntent(ctx, "../refunds"); return err },
		"a confirmation of none":   func(ctx context.Context) error { _, err := c.ConfirmIntent(ctx, "key_1", ""); return err },
		"a cancellation of none":   func(ctx context.Context) error { _, err := c.CancelIntent(ctx, ""); return err },
		"a refund of no intent":    func(ctx context.Context) error { _, err := c.CreateRefund(ctx, "key_1", refundParams("")); return err },
		"a refund without a key":   func(ctx context.Context) error { _, err := c.CreateRefund(ctx, "", refundParams("pi_1")); return err },
		"the refunds of no intent": func(ctx context.Context) error { _, err := collect(c.RefundsOf(ctx, "")); return err },
	} {
		if err := call(t.Context()); kinds(err) != "rejected" {
			t.Errorf("%s: %v, want a rejection", name, err)
		}
	}
	if got := p.requests.Load(); got != 0 {
		t.Errorf("%d requests were sent, want none", got)
	}
}
