package stripe_test

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/stripe"
)

type callers struct{}

// TestObserve: every request is told, under a name that holds nothing of it.
func TestObserve(t *testing.T) {
	t.Parallel()
	status, replayed := http.StatusOK, "true"
	p := newProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Idempotent-Replayed", replayed)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(intentJSON()))
	})
	var mu sync.Mutex
	var calls []string
	var answers []stripe.Answered
	c, err := stripe.New(stripe.Config{SecretKey: secretKey, Base: p.URL, Observe: func(ctx context.Context, call string) func(stripe.Answered) {
		if ctx.Value(callers{}) == nil {
			t.Errorf("%s is observed in another context than the caller's", call)
		}
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, call)
		return func(a stripe.Answered) { answers = append(answers, a) }
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	ctx := context.WithValue(t.Context(), callers{}, true)
	_, _ = c.CreateIntent(ctx, "key", stripe.CreateParams{Reference: "ch_1", Amount: 1999, Currency: "EUR", PaymentMethod: "pm_card_visa"})
	_, _ = c.ConfirmIntent(ctx, "key", "pi_1")
	_, _ = c.RetrieveIntent(ctx, "pi_1")
	status, replayed = http.StatusInternalServerError, ""
	_, _ = c.CreateRefund(ctx, "key", stripe.RefundParams{PaymentIntent: "pi_1", Reference: "re_1", Amount: 1, Currency: "EUR"})
	_, _ = c.RetrieveRefund(ctx, "re_1")
	for _, err := range c.RefundsOf(ctx, "pi_1") {
		if err == nil {
			t.Error("a list was read that was refused")
		}
		break
	}
	for _, err := range c.Intents(ctx) {
		if err == nil {
			t.Error("a list was read that was refused")
		}
		break
	}
	p.Close()
	_, _ = c.CancelIntent(ctx, "pi_1")

	want := []string{
		"POST payment_intents", "POST payment_intents/id/confirm", "GET payment_intents/id",
		"POST refunds", "GET refunds/id", "GET refunds", "GET payment_intents", "POST payment_intents/id/cancel",
	}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	slices.Sort(want)
	known := stripe.Calls()
	slices.Sort(known)
	if diff := cmp.Diff(known, want); diff != "" {
		t.Errorf("calls that are known (-) and made (+):\n%s", diff)
	}
	if len(answers) != len(want) {
		t.Fatalf("%d answers to %d requests", len(answers), len(want))
	}
	ok, failed := stripe.Answered{Status: 200, Replayed: true}, stripe.Answered{Status: 500}
	if diff := cmp.Diff([]stripe.Answered{ok, ok, ok, failed, failed, failed, failed, {}}, answers); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}
