package fulfillment_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/payonce/payonce/domain"
)

// transcript is what was logged.
type transcript struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *transcript) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *transcript) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestProviderEvent(t *testing.T) {
	t.Parallel()

	t.Run("an event wakes the charge up", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.exec(`delete from inbox`)
		w.event("evt_1", "payment_intent.succeeded")
		w.provider.on("retrieve", shows("succeeded"))
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted), "retrieve")
	})

	t.Run("what an event says is not believed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.exec(`delete from inbox`)
		w.event("evt_1", "payment_intent.succeeded")
		w.provider.on("retrieve", shows("processing"))
		w.expectKind(w.deliver(), "waits")
		w.expect(open(toStarted, "pending"), "retrieve")
	})

	t.Run("an event wakes a pending refund up", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.append(w.capture(), domain.RefundRequested{RefundID: "re_1", Amount: 600})
		w.event("evt_1", "refund.updated")
		w.provider.on("refunds", lists(refundOf("succeeded")), lists(refundOf("succeeded")))
		w.expectKind(w.deliver(), "done")
		w.expect(back(refunded, "refund.succeeded", "done"), "refunds refunds")
	})

	for _, name := range []string{"payment_intent.succeeded", "payment_intent.payment_failed", "payment_intent.canceled", "charge.refunded", "refund.failed"} {
		t.Run(name+" of a finished charge adds no event", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.capture()
			w.event("evt_1", name)
			w.expectKind(w.deliver(), "done")
			w.expect(back("", "", "done"), "")
		})
	}

	t.Run("an event of a charge that is not ours is done with one line in the log", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.exec(`delete from inbox`)
		w.event("evt_1", "payment_intent.succeeded")
		w.exec(`update inbox set ordering_key = 'ch_2'`)
		w.expectKind(w.deliver(), "done")
		w.expect(open(toStarted, "done"), "")
		if log := w.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "charge_id=ch_2") || !strings.Contains(log, "message_id=evt_1") {
			t.Errorf("the log is:\n%s", log)
		}
	})
}
