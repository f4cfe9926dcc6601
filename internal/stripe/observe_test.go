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
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	ctx := context.WithValue(t.Context(), callers{}, true)
	made := calls(c)
	for _, call := range []string{"create", "confirm", "retrieve", "create refund", "refunds", "intents"} {
		if call == "create refund" {
			status, replayed = http.StatusInternalServerError, ""
		}
		_, _ = made[call](ctx)
	}
	p.Close()
	_, _ = c.CancelIntent(ctx, "pi_1")

	want := []string{
		"POST payment_intents", "POST payment_intents/id/confirm", "GET payment_intents/id",
		"POST refunds", "GET refunds", "GET payment_intents", "POST payment_intents/id/cancel",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(stripe.Calls())), slices.Sorted(slices.Values(want))); diff != "" {
		t.Errorf("calls that are known (-) and made (+):\n%s", diff)
	}
	ok, failed := stripe.Answered{Status: 200, Replayed: true}, stripe.Answered{Status: 500}
	if diff := cmp.Diff([]stripe.Answered{ok, ok, ok, failed, failed, failed, {}}, answers); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}
