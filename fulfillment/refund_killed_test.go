package fulfillment_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
)

// TestRefund_killed lets the holder of a refund's message come to its end at each
// of its steps, where the provider is one with books of its own. Whoever takes
// over brings the refund to its outcome, and the money goes back once, whether
// the provider still knows the keys or not.
func TestRefund_killed(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	// Each way to die is what happens to the next call of the step.
	for name, die := range map[string]struct {
		at   string
		dies func(*world) http.HandlerFunc
		kind string
	}{
		"before the provider has the refund": {"refund", func(*world) http.HandlerFunc { return cut }, "waits"},
		"after the money went and before the answer came": {
			"refund", func(w *world) http.HandlerFunc { return w.provider.cutAfter }, "waits",
		},
		"with the answer in hand and before the commit": {
			"refund", func(w *world) http.HandlerFunc { return w.takeOver(w.provider.behind.ServeHTTP) }, "lost",
		},
		"after an error of the provider, saved, and no money": {
			"refund", func(*world) http.HandlerFunc { return breaks() }, "waits",
		},
		"after an error of the provider, saved, and money": {
			"refund", func(w *world) http.HandlerFunc { return w.provider.breaksAfter }, "waits",
		},
		"while it looks for the refund": {"refunds", func(*world) http.HandlerFunc { return cut }, "waits"},
		"after its look and before it sends": {
			"refunds", func(w *world) http.HandlerFunc { return w.takeOver(lists()) }, "lost",
		},
	} {
		for memory, faults := range map[string]string{
			"":                             `{}`,
			", and the keys are forgotten": `{"forget_keys_after": "0s"}`,
		} {
			t.Run(name+memory, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.provider.behind = newSandbox(t)
				w.request(w.charged("pm_card_visa"), "re_1", 600)
				control(t, w.provider.behind, http.MethodPut, "/faults", faults)
				w.provider.on(die.at, die.dies(w))
				w.expectKind(w.deliver(), die.kind)
				w.deliverUntilDone()
				w.expectBack("refund.succeeded", moved{"re_1", 600})
			})
		}
	}

	t.Run("when its time is up in the middle of the send", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.provider.behind = newSandbox(t)
		w.request(w.charged("pm_card_visa"), "re_1", 600)
		up := make(chan struct{})
		w.provider.on("refund", w.provider.afterHangUp(func() { close(up) }))
		err := w.deliverAll(fulfillment.ChargeReceiver, func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
			ctx, cancel := context.WithCancel(ctx)
			go func() { <-up; cancel() }()
			return w.charge(ctx, d)
		}, 1)[0]
		w.expectKind(err, "refund re_1: context canceled")
		w.deliverUntilDone()
		w.expectBack("refund.succeeded", moved{"re_1", 600})
	})
}

// breaksAfter lets the handler behind have its effect and answers with an error
// of the provider's.
func (p *provider) breaksAfter(w http.ResponseWriter, r *http.Request) {
	p.behind.ServeHTTP(httptest.NewRecorder(), r)
	breaks()(w, r)
}

// expectBack checks the outcomes of the refunds that were told, and what the
// provider itself says that it gave back.
func (w *world) expectBack(outcomes string, want ...moved) {
	w.Helper()
	if got := w.see(); got.Outbox != "charge.succeeded "+outcomes {
		w.Errorf("the charge left %+v, want the outcomes %q", got, outcomes)
	}
	b := booksOf(w.T, w.provider.behind)
	slices.SortFunc(b.Refunds, func(a, b moved) int { return int(b.Amount - a.Amount) })
	if diff := cmp.Diff(append([]moved{}, want...), b.Refunds); diff != "" {
		w.Errorf("the provider gave back (-want +got):\n%s", diff)
	}
}

func TestRefund_is_given_back_once(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()

	for name, faults := range map[string]string{
		"when half of the answers are errors of the provider":  `{"seed": 7, "error_500": 0.5}`,
		"when half of the requests and answers are lost":       `{"seed": 7, "drop_before": 0.3, "drop_after": 0.3}`,
		"when half of it is lost and the keys are forgotten":   `{"seed": 7, "drop_before": 0.3, "drop_after": 0.3, "forget_keys_after": "0s"}`,
		"when everything is broken and the keys are forgotten": `{"seed": 9, "drop_before": 0.2, "drop_after": 0.2, "error_500": 0.3, "forget_keys_after": "0s"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.provider.behind = newSandbox(t)
			s := w.charged("pm_card_visa")
			for _, refund := range []moved{{"re_1", 600}, {"re_2", 500}, {"re_3", 400}} {
				s = w.request(s, refund.Reference, refund.Amount)
			}
			control(t, w.provider.behind, http.MethodPut, "/faults", faults)
			for range 3 {
				w.deliverUntilDone()
			}
			control(t, w.provider.behind, http.MethodDelete, "/faults", "")
			w.expectBack("refund.succeeded refund.succeeded refund.succeeded", moved{"re_1", 600}, moved{"re_2", 500}, moved{"re_3", 400})
		})
	}

	t.Run("a card that takes nothing back fails the refund", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.provider.behind = newSandbox(t)
		w.request(w.charged("pm_card_refundFail"), "re_1", 600)
		w.provider.on("refund", w.provider.cutAfter)
		w.expectKind(w.deliver(), "waits")
		w.expectKind(w.deliver(), "done")
		w.expectCalls("refunds refund refunds")
		w.expectBack("refund.failed")
	})
}
