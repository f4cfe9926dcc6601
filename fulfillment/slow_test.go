package fulfillment_test

import (
	"testing"
	"time"

	"github.com/payonce/payonce/fulfillment"
)

// TestSlow has a provider that takes longer for one request than payonce waits
// for its answer, and carries the request out after that.
func TestSlow(t *testing.T) {
	t.Parallel()

	for _, op := range []string{"create", "confirm"} {
		t.Run("a "+op+" that outlasts the time-out takes the money once", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.provider.behind = newSandbox(t)
			w.provider.on(op, w.provider.afterHangUp(func() {}))
			w.accept("ch_1", order())
			w.expectKind(w.deliverHastily(), "waits")
			w.deliverUntilDone()
			if got := w.see(); got.Events != toStarted+captured || got.Stock != sold {
				t.Errorf("the charge left %+v", got)
			}
			if b := booksOf(t, w.provider.behind); len(b.Captures) != 1 {
				t.Errorf("the provider's captures are %+v, want one", b.Captures)
			}
		})
	}

	t.Run("a refund that outlasts the time-out gives the money back once", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.provider.behind = newSandbox(t)
		w.request(w.charged("pm_card_visa"), "re_1", 600)
		w.provider.on("refund", w.provider.afterHangUp(func() {}))
		w.expectKind(w.deliverHastily(), "waits")
		w.deliverUntilDone()
		w.expectBack("refund.succeeded", moved{"re_1", 600})
	})
}

// deliverHastily delivers the message once with a short time-out for the provider.
// All other deliveries have the normal one, since the machine may be slow.
func (w *world) deliverHastily() error {
	w.Helper()
	hasty := w.clientWithin(300 * time.Millisecond)
	return w.deliverAll(fulfillment.ChargeReceiver, w.handlerOf(hasty), 1)[0]
}
