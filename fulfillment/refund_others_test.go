package fulfillment_test

import (
	"strings"
	"testing"

	"github.com/payonce/payonce/domain"
)

// TestRefund_others is about several refunds of one charge.
func TestRefund_others(t *testing.T) {
	t.Parallel()
	second := []any{"id", "rp_2", "amount", 100, "metadata", map[string]any{"refund_id": "re_2"}}

	t.Run("one that waits does not keep another from being tried", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.append(w.refunding(), domain.RefundRequested{RefundID: "re_2", Amount: 100})
		w.provider.on("refund", gives("pending"), gives("succeeded", second...))
		w.provider.on("refunds", lists(), lists(refundOf("succeeded")))
		w.expectKind(w.deliver(), "waits")
		w.expect(back(asked+asked+" refund.succeeded", "refund.succeeded", "pending"), "refunds refund refunds refund")
		w.expectKind(w.deliver(), "done")
		w.expect(back(asked+asked+" refund.succeeded refund.succeeded", "refund.succeeded refund.succeeded", "done"), "refunds")
	})

	t.Run("one for a human does not keep another from being tried, and is not forgotten", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.append(w.refunding(), domain.RefundRequested{RefundID: "re_2", Amount: 100})
		w.provider.on("refund", gives("reticent"), gives("pending", second...))
		w.provider.on("refunds", lists(), lists(refundOf("reticent")), lists(refundOf("succeeded", second...)))
		w.expectKind(w.deliver(), "waits")
		w.expect(back(asked+asked, "", "pending"), "refunds refund refunds refund")
		if reason := w.text(`select last_error from inbox`); !strings.Contains(reason, "reticent") {
			t.Errorf("the reason of the wait does not tell a human of the other refund: %s", reason)
		}
		w.expectKind(w.deliver(), "parked")
		w.expect(back(asked+asked+" refund.succeeded", "refund.succeeded", "dead"), "refunds refunds")
	})

	t.Run("one that is requested meanwhile is carried too", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.refunding()
		w.provider.on("refund",
			meanwhile(func() { w.request(s, "re_2", 100) }, gives("succeeded")),
			gives("succeeded", second...))
		w.provider.on("refunds", lists(refundOf("succeeded")))
		w.expectKind(w.deliver(), "done")
		w.expect(back(asked+asked+" refund.succeeded refund.succeeded", "refund.succeeded refund.succeeded", "done pending"),
			"refunds refund refunds refund")
		w.expectKind(w.deliver(), "done")
		w.expectCalls("")
	})

	t.Run("who lost the version to something else records at once what the provider said", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.refunding()
		told := domain.MerchantNotified{EventID: s.At(4).ID.String(), Type: "charge.succeeded", Version: 4}
		w.provider.on("refund", meanwhile(func() { w.append(s, told) }, gives("succeeded")))
		w.expectKind(w.deliver(), "done")
		w.expect(back(asked+" merchant.notified refund.succeeded", "refund.succeeded", "done"), "refunds refund")
	})
}
