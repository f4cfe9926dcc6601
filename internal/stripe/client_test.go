package stripe_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	stripego "github.com/stripe/stripe-go/v85"

	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testrun"
)

func TestNew_refusesUnusableSettings(t *testing.T) {
	t.Parallel()
	for _, cfg := range []stripe.Config{
		{SecretKey: "sk_live_x"},
		{SecretKey: "sk_live_x", Base: "https://api.stripe.com"},
		{SecretKey: "sk_test_x", Base: "http://127.0.0.1:8090/"},
		{SecretKey: "sk_test_x", Base: "http://sandbox:8090", Timeout: time.Second},
	} {
		_, err := stripe.New(cfg)
		testrun.Must(t, err)
	}
	of := func(base string) stripe.Config { return stripe.Config{SecretKey: "sk_test_hush", Base: base} }
	for says, refused := range map[string][]stripe.Config{
		"STRIPE_SECRET_KEY": {{}, {SecretKey: "sk_test_hush\n"}},
		"STRIPE_API_BASE": {
			of("https://api.stripe.com/v1"), of("https://api.stripe.com/?x"), of("https://api.stripe.com/#v1"), of("api.stripe.com"),
			of("ftp://api.stripe.com"), of("https://:443"), of("http://%zz"), of("https://me:hush@api.stripe.com"),
		},
		"https://":       {{SecretKey: "sk_live_hush", Base: "http://api.stripe.com"}, {SecretKey: "rk_live_hush", Base: "http://api.stripe.com"}},
		"STRIPE_ACCOUNT": {{SecretKey: "sk_test_hush", Account: "me"}},
	} {
		for _, cfg := range refused {
			if _, err := stripe.New(cfg); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hush") {
				t.Errorf("%+v: error is %v, want one that names %s and no secret", cfg, err, says)
			}
		}
	}
}

type callers struct{}

// The observer learns every request by a name that holds no id, and its answer.
func TestClient_reportsEachRequestToItsObserver(t *testing.T) {
	t.Parallel()
	status, seen := http.StatusOK, []string(nil)
	p := newProvider(t, func(w http.ResponseWriter, r *http.Request) {
		answer(status, intentJSON(), "Idempotent-Replayed", strconv.FormatBool(status == http.StatusOK))(w, r)
	})
	c, err := stripe.New(stripe.Config{SecretKey: secretKey, Base: p.URL, Observe: func(ctx context.Context, call string) func(stripe.Answered) {
		if ctx.Value(callers{}) == nil {
			t.Errorf("%s is observed in another context than the caller's", call)
		}
		return func(a stripe.Answered) { seen = append(seen, fmt.Sprintf("%s: %d %t", call, a.Status, a.Replayed)) }
	}})
	testrun.Must(t, err)
	defer c.Close()

	ctx := context.WithValue(t.Context(), callers{}, true)
	made := calls(c)
	for _, call := range []string{"create", "confirm", "retrieve", "create refund", "refunds", "intents", "disputes"} {
		if call == "create refund" {
			status = http.StatusInternalServerError
		}
		_, _ = made[call](ctx)
	}
	_, _ = c.Account(ctx)
	p.Close()
	_, _ = c.CancelIntent(ctx, "pi_1")
	testrun.Same(t, "calls", []string{
		"POST payment_intents: 200 true", "POST payment_intents/id/confirm: 200 true", "GET payment_intents/id: 200 true",
		"POST refunds: 500 false", "GET refunds: 500 false", "GET payment_intents: 500 false", "GET disputes: 500 false", "GET account: 500 false",
		"POST payment_intents/id/cancel: 0 false",
	}, seen)
	var names []string
	for _, line := range seen {
		name, _, _ := strings.Cut(line, ":")
		names = append(names, name)
	}
	testrun.Same(t, "calls that are known and made", slices.Sorted(slices.Values(stripe.Calls())), slices.Sorted(slices.Values(names)))
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
	ctx, errOf := t.Context(), func(_ any, err error) error { return err }
	for name, err := range map[string]error{
		"no key":                  errOf(c.ConfirmIntent(ctx, "", "pi_1", "")),
		"a key with a space":      errOf(c.ConfirmIntent(ctx, " key", "pi_1", "")),
		"an intent without an id": errOf(c.RetrieveIntent(ctx, "")),
		"an id with a space":      errOf(c.RetrieveIntent(ctx, "pi_1 ")),
		"a confirmation of none":  errOf(c.ConfirmIntent(ctx, "key_1", "", "")),
		"a cancellation of none":  errOf(c.CancelIntent(ctx, "")),
		"a refund of no intent":   errOf(c.CreateRefund(ctx, "key_1", refundParams(""))),
		"a refund without a key":  errOf(c.CreateRefund(ctx, "", refundParams("pi_1"))),
	} {
		if kind(err) != "rejected" {
			t.Errorf("%s: %v, want a rejection", name, err)
		}
	}
	if got := p.requests.Load(); got != 0 {
		t.Errorf("%d requests were sent, want none", got)
	}
}
