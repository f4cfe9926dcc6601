package fulfillment_test

import (
	"net/http"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
)

// TestResume begins where a holder died: the payment has started, and the intent
// knows how it stands.
func TestResume(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status string
		pairs  []any
		script map[string]http.HandlerFunc
		calls  string
		kind   string
		want   sight
	}{
		"an intent that nobody confirmed is confirmed": {
			status: "requires_confirmation",
			script: map[string]http.HandlerFunc{"confirm": shows("succeeded")},
			calls:  "retrieve confirm", kind: "done", want: succeeded(toStarted),
		},
		"an intent without a payment method that was never attempted is confirmed": {
			status: "requires_payment_method",
			script: map[string]http.HandlerFunc{"confirm": shows("succeeded")},
			calls:  "retrieve confirm", kind: "done", want: succeeded(toStarted),
		},
		"a declined intent is canceled and the charge fails": {
			status: "requires_payment_method", pairs: attempted("card_declined", "insufficient_funds"),
			script: map[string]http.HandlerFunc{"cancel": shows("canceled")},
			calls:  "retrieve cancel", kind: "done", want: failed(toStarted, domain.CardDeclined),
		},
		"an intent declined for authentication is canceled and the charge fails": {
			status: "requires_payment_method", pairs: attempted("authentication_required", "authentication_required"),
			script: map[string]http.HandlerFunc{"cancel": shows("canceled")},
			calls:  "retrieve cancel", kind: "done", want: failed(toStarted, domain.AuthenticationRequired),
		},
		"an attempted intent that forgot its decline is canceled and the charge fails": {
			status: "requires_payment_method", pairs: []any{"latest_charge", "py_1"},
			script: map[string]http.HandlerFunc{"cancel": shows("canceled")},
			calls:  "retrieve cancel", kind: "done", want: failed(toStarted, domain.ProviderRefused),
		},
		"an intent that wants the customer is canceled and the charge fails": {
			status: "requires_action",
			script: map[string]http.HandlerFunc{"cancel": shows("canceled")},
			calls:  "retrieve cancel", kind: "done", want: failed(toStarted, domain.AuthenticationRequired),
		},
		"an intent under way is looked at again later": {
			status: "processing", calls: "retrieve", kind: "waits", want: open(toStarted, "pending"),
		},
		"an intent that succeeded is recorded and not confirmed": {
			status: "succeeded", calls: "retrieve", kind: "done", want: succeeded(toStarted),
		},
		"a canceled intent fails the charge": {
			status: "canceled", calls: "retrieve", kind: "done", want: failed(toStarted, domain.ProviderRefused),
		},
		"a canceled intent that remembers its decline fails the charge with it": {
			status: "canceled", pairs: attempted("card_declined", "lost_card"),
			calls: "retrieve", kind: "done", want: failed(toStarted, domain.CardDeclined),
		},
		"an intent of another amount is parked": {
			status: "succeeded", pairs: []any{"amount", 2000, "amount_received", 2000},
			calls: "retrieve", kind: "parked", want: open(toStarted, "dead"),
		},
		"an intent of another currency is parked": {
			status: "succeeded", pairs: []any{"currency", "usd"},
			calls: "retrieve", kind: "parked", want: open(toStarted, "dead"),
		},
		"an intent of another charge is parked": {
			status: "succeeded", pairs: []any{"metadata", map[string]any{"charge_id": "ch_2"}},
			calls: "retrieve", kind: "parked", want: open(toStarted, "dead"),
		},
		"an intent of nobody's charge is parked": {
			status: "succeeded", pairs: []any{"metadata", map[string]any{}},
			calls: "retrieve", kind: "parked", want: open(toStarted, "dead"),
		},
		"an intent that took less than its amount is parked": {
			status: "succeeded", pairs: []any{"amount_received", 1998},
			calls: "retrieve", kind: "parked", want: open(toStarted, "dead"),
		},
		"an intent that waits to be captured is parked": {
			status: "requires_capture", calls: "retrieve", kind: "parked", want: open(toStarted, "dead"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start()
			w.provider.on("retrieve", shows(tc.status, tc.pairs...))
			for op, answer := range tc.script {
				w.provider.on(op, answer)
			}
			err := w.deliver()
			w.expectKind(err, tc.kind)
			w.expect(tc.want, tc.calls)
		})
	}

	t.Run("waiting for the provider counts no attempt", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		for range 3 {
			w.provider.on("retrieve", shows("processing"))
			w.expectKind(w.deliver(), "waits")
		}
		if got := w.text(`select format('%s %s', attempts, waits) from inbox`); got != "0 3" {
			t.Errorf("attempts and waits are %s, want 0 3", got)
		}
		w.provider.on("retrieve", shows("succeeded"))
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted), "retrieve retrieve retrieve retrieve")
	})

	t.Run("a finished charge's message again asks nobody", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.start()
		w.provider.on("retrieve", shows("succeeded"))
		w.expectKind(w.deliver(), "done")
		w.put(fulfillment.ChargeReceiver, s, 1, "again")
		w.expectKind(w.deliver(), "done")
		want := succeeded(toStarted)
		want.Message = "done done"
		w.expect(want, "retrieve")
	})

	t.Run("a message that says nothing but the charge is a wake-up too", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.exec(`update inbox set payload = '{}'`)
		w.provider.on("retrieve", shows("succeeded"))
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted), "retrieve")
	})

	t.Run("a message about a charge that is not there waits", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.exec(`update inbox set ordering_key = 'ch_2'`)
		w.expectKind(w.deliver(), "waits")
		w.expect(open(toStarted, "pending"), "")
	})
}
