package stripe_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	stripego "github.com/stripe/stripe-go/v85"

	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testrun"
)

func TestNew_refusesUnusableSettings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		cfg  stripe.Config
		says string // "" if it is accepted
	}{
		{stripe.Config{SecretKey: "sk_live_x"}, ""},
		{stripe.Config{SecretKey: "sk_live_x", Base: "https://api.stripe.com"}, ""},
		{stripe.Config{SecretKey: "sk_test_x", Base: "http://127.0.0.1:8090/"}, ""},
		{stripe.Config{SecretKey: "sk_test_x", Base: "http://sandbox:8090", Timeout: time.Second}, ""},
		{stripe.Config{}, "STRIPE_SECRET_KEY"},
		{stripe.Config{SecretKey: "sk_test_hush\n"}, "STRIPE_SECRET_KEY"},
		{stripe.Config{SecretKey: "sk_test_hush", Base: "https://api.stripe.com/v1"}, "STRIPE_API_BASE"},
		{stripe.Config{SecretKey: "sk_test_hush", Base: "https://api.stripe.com/?x"}, "STRIPE_API_BASE"},
		{stripe.Config{SecretKey: "sk_test_hush", Base: "https://api.stripe.com/#v1"}, "STRIPE_API_BASE"},
		{stripe.Config{SecretKey: "sk_test_hush", Base: "api.stripe.com"}, "STRIPE_API_BASE"},
		{stripe.Config{SecretKey: "sk_test_hush", Base: "ftp://api.stripe.com"}, "STRIPE_API_BASE"},
		{stripe.Config{SecretKey: "sk_test_hush", Base: "https://:443"}, "STRIPE_API_BASE"},
		{stripe.Config{SecretKey: "sk_test_hush", Base: "http://%zz"}, "STRIPE_API_BASE"},
		{stripe.Config{SecretKey: "sk_test_hush", Base: "https://me:hush@api.stripe.com"}, "STRIPE_API_BASE"},
		{stripe.Config{SecretKey: "sk_live_hush", Base: "http://api.stripe.com"}, "https://"},
		{stripe.Config{SecretKey: "rk_live_hush", Base: "http://api.stripe.com"}, "https://"},
		{stripe.Config{SecretKey: "sk_test_hush", Account: "me"}, "STRIPE_ACCOUNT"},
	} {
		_, err := stripe.New(tc.cfg)
		if tc.says == "" && err == nil {
			continue
		}
		if tc.says == "" || err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%+v: error is %v, want one that names %s and no secret", tc.cfg, err, tc.says)
		}
	}
}

type callers struct{}

// The observer learns every request by a name that holds no id, and its answer.
func TestClient_reportsEachRequestToItsObserver(t *testing.T) {
	t.Parallel()
	status, replayed := http.StatusOK, "true"
	p := newProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Idempotent-Replayed", replayed)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(intentJSON()))
	})
	var mu sync.Mutex
	var names []string
	var answers []stripe.Answered
	c, err := stripe.New(stripe.Config{SecretKey: secretKey, Base: p.URL, Observe: func(ctx context.Context, call string) func(stripe.Answered) {
		if ctx.Value(callers{}) == nil {
			t.Errorf("%s is observed in another context than the caller's", call)
		}
		mu.Lock()
		defer mu.Unlock()
		names = append(names, call)
		return func(a stripe.Answered) { answers = append(answers, a) }
	}})
	testrun.Must(t, err)
	defer c.Close()

	ctx := context.WithValue(t.Context(), callers{}, true)
	made := calls(c)
	for _, call := range []string{"create", "confirm", "retrieve", "create refund", "refunds", "intents", "disputes"} {
		if call == "create refund" {
			status, replayed = http.StatusInternalServerError, ""
		}
		_, _ = made[call](ctx)
	}
	_, _ = c.Account(ctx)
	p.Close()
	_, _ = c.CancelIntent(ctx, "pi_1")

	want := []string{
		"POST payment_intents", "POST payment_intents/id/confirm", "GET payment_intents/id",
		"POST refunds", "GET refunds", "GET payment_intents", "GET disputes", "GET account",
		"POST payment_intents/id/cancel",
	}
	testrun.Same(t, "calls", want, names)
	if diff := cmp.Diff(slices.Sorted(slices.Values(stripe.Calls())), slices.Sorted(slices.Values(want))); diff != "" {
		t.Errorf("calls that are known (-) and made (+):\n%s", diff)
	}
	ok, failed := stripe.Answered{Status: 200, Replayed: true}, stripe.Answered{Status: 500}
	testrun.Same(t, "answers", []stripe.Answered{ok, ok, ok, failed, failed, failed, failed, failed, {}}, answers)
}

// TestCall_isSentOnceOnAReusedConnectionThatIsCut: the provider answers the first request, and cuts
// the connection, which then is a reused one, at the others. Each has the key, and no telemetry.
func TestCall_isSentOnceOnAReusedConnectionThatIsCut(t *testing.T) {
	t.Parallel()
	for name := range calls(nil) {
		var n atomic.Int64
		p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Stripe-Client-Telemetry") != "" || r.Header.Get("Authorization") != "Bearer "+secretKey {
				t.Errorf("%s: headers %v", name, r.Header)
			}
			if n.Add(1) == 1 {
				answer(200, intentJSON())(w, r)
				return
			}
			cut("")(w, r)
		})
		c := newClient(t, p.URL, 0)
		_, err := c.RetrieveIntent(t.Context(), "pi_1")
		testrun.Must(t, err)
		zero, err := calls(c)[name](t.Context())
		if kind(err) != "unavailable" || !zero {
			t.Errorf("%s: error %v, zero value %t, want unavailable and true", name, err, zero)
		}
		if got := p.requests.Load(); got != 2 {
			t.Errorf("%s: the provider saw %d requests, want 2", name, got)
		}
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
		"no key":                  func(ctx context.Context) error { _, err := c.ConfirmIntent(ctx, "", "pi_1", ""); return err },
		"a key with a space":      func(ctx context.Context) error { _, err := c.ConfirmIntent(ctx, " key", "pi_1", ""); return err },
		"an intent without an id": func(ctx context.Context) error { _, err := c.RetrieveIntent(ctx, ""); return err },
		"an id with a space":      func(ctx context.Context) error { _, err := c.RetrieveIntent(ctx, "pi_1 "); return err },
		"a confirmation of none":  func(ctx context.Context) error { _, err := c.ConfirmIntent(ctx, "key_1", "", ""); return err },
		"a cancellation of none":  func(ctx context.Context) error { _, err := c.CancelIntent(ctx, ""); return err },
		"a refund of no intent":   func(ctx context.Context) error { _, err := c.CreateRefund(ctx, "key_1", refundParams("")); return err },
		"a refund without a key":  func(ctx context.Context) error { _, err := c.CreateRefund(ctx, "", refundParams("pi_1")); return err },
	} {
		if err := call(t.Context()); kind(err) != "rejected" {
			t.Errorf("%s: %v, want a rejection", name, err)
		}
	}
	if got := p.requests.Load(); got != 0 {
		t.Errorf("%d requests were sent, want none", got)
	}
}
