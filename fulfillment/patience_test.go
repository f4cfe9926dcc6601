package fulfillment_test

import (
	"net/http"
	"testing"

	"github.com/payonce/payonce/inbox"
)

// TestPatience is about waits that are longer than GIVE_UP_AFTER.
func TestPatience(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		begin  func(*world)
		op     string
		answer http.HandlerFunc
		status string
	}{
		"a payment that is processing is waited for": {
			func(w *world) { w.start() }, "retrieve", shows("processing"), "pending",
		},
		"a payment that is processing and was to be canceled is waited for": {
			func(w *world) { w.cancel(w.start()) }, "cancel", unexpected("processing"), "pending",
		},
		"a refund that is pending is waited for": {
			func(w *world) { w.request(w.capture(), "re_1", 600) }, "refunds", lists(refundOf("pending")), "pending",
		},
		"a refund that needs the customer is waited for": {
			func(w *world) { w.request(w.capture(), "re_1", 600) }, "refunds", lists(refundOf("requires_action")), "pending",
		},
		"a provider that is out of reach is given up": {
			func(w *world) { w.request(w.capture(), "re_1", 600) }, "refunds", cut, "dead",
		},
		"an intent that does not let itself be canceled is given up": {
			func(w *world) { w.cancel(w.start()) }, "cancel", shows("requires_action"), "dead",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tc.begin(w)
			w.provider.on(tc.op, tc.answer, tc.answer)
			for range 2 {
				w.expectKind(w.deliver(), "waits")
				w.exec(`update inbox set waiting_since = waiting_since - interval '1 week'`)
			}
			if got := w.text(`select status from inbox`); got != tc.status {
				t.Errorf("after a week the message is %s, want %s", got, tc.status)
			}
		})
	}

	t.Run("an outage counts from its own beginning", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.request(w.capture(), "re_1", 600)
		w.provider.on("refunds", cut, lists(refundOf("pending")), cut)
		for range 3 {
			w.expectKind(w.deliver(), "waits")
			w.exec(`update inbox set waiting_since = waiting_since - interval '59 minutes'`)
		}
		w.expect(back(asked, "", "pending"), "refunds refunds refunds")
	})
}

// TestParked is about messages that were parked, and whose work has been done
// since.
func TestParked(t *testing.T) {
	t.Parallel()

	t.Run("a refund that ended meanwhile is done at once when it is retried, and nobody is asked", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.refunding()
		w.provider.on("refund", gives("reticent"))
		w.expectKind(w.deliver(), "parked")
		w.event("evt_1", "payment_intent.succeeded")
		w.provider.on("refunds", lists(refundOf("succeeded")))
		w.expectKind(w.deliver(), "done")
		w.expect(back(refunded, "refund.succeeded", "dead done"), "refunds refund refunds")
		w.retryParked()
		w.expectKind(w.deliver(), "done")
		w.expect(back(refunded, "refund.succeeded", "done done"), "")
	})

	t.Run("a charge that ended meanwhile is done at once when it is retried, and nobody is asked", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.provider.on("retrieve", shows("requires_capture"), shows("succeeded"))
		w.expectKind(w.deliver(), "parked")
		w.event("evt_1", "payment_intent.succeeded")
		w.expectKind(w.deliver(), "done")
		w.expectCalls("retrieve retrieve")
		w.retryParked()
		w.expectKind(w.deliver(), "done")
		want := succeeded(toStarted)
		want.Message = "done done"
		w.expect(want, "")
	})
}

// retryParked has an operator retry the parked messages.
func (w *world) retryParked() {
	w.Helper()
	dead, err := inbox.List(w.Context(), w.db, inbox.StatusDead, 0, 10)
	if err != nil || len(dead) == 0 {
		w.Fatalf("%d messages are parked: %v", len(dead), err)
	}
	for _, m := range dead {
		if err := inbox.Retry(w.Context(), w.db, m.Number, "ann"); err != nil {
			w.Fatal(err)
		}
	}
}
