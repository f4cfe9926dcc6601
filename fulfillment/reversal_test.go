package fulfillment_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// gaveBack is a charge of which 600 went back by rp_1.
func (w *world) gaveBack() ledger.Stream {
	w.Helper()
	return w.append(w.capture(),
		domain.RefundRequested{RefundID: "re_1", Amount: 600, Notify: true},
		domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600})
}

func TestReversal(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	const reversed = refunded + " refund.reversed"

	for _, name := range []string{"refund.failed", "refund.updated", "charge.refund.updated", "charge.refunded"} {
		for _, status := range []string{"failed", "canceled"} {
			t.Run("a refund that is "+status+" after it succeeded is reversed by "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.gaveBack()
				w.event("evt_1", name)
				w.provider.on("refunds", lists(refundOf(status)))
				w.expectKind(w.deliver(), "done")
				w.expect(back(reversed, "refund.reversed", "done"), "refunds")
			})
		}
	}

	t.Run("it says why, and the money is the merchant's again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.gaveBack()
		w.event("evt_1", "refund.failed")
		w.provider.on("refunds", lists(refundOf("failed", "failure_reason", "lost_or_stolen_card")))
		w.expectKind(w.deliver(), "done")
		s := w.load()
		want := domain.RefundReversed{
			RefundID: "re_1", ProviderRefund: "rp_1", Amount: 600,
			Message: "the refund failed at the provider: lost_or_stolen_card",
		}
		if diff := cmp.Diff(want, s.Head().Event); diff != "" {
			t.Errorf("recorded (-want +got):\n%s", diff)
		}
		if left := s.Charge.Left(); left != 1999 {
			t.Errorf("%d are left for another refund, want all", left)
		}
		books := w.text(`select format('%s→%s %s', split_part(debit, ':', 1), split_part(credit, ':', 1), amount) from ledger_postings where version = 7`)
		if books != "psp_receivable→merchant_payable 600" {
			t.Errorf("the books are %s", books)
		}
	})

	for name, listed := range map[string][]json.RawMessage{
		"a refund that succeeded there too":      {refundOf("succeeded")},
		"a refund that is pending there again":   {refundOf("pending")},
		"a refund that the list does not have":   {},
		"another one's failure":                  {refundOf("failed", "id", "rp_2", "metadata", map[string]any{"refund_id": "re_2"})},
		"another try of ours that failed before": {refundOf("failed", "id", "rp_0"), refundOf("succeeded")},
	} {
		t.Run(name+" is not reversed", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.gaveBack()
			w.event("evt_1", "refund.failed")
			w.provider.on("refunds", lists(listed...))
			w.expectKind(w.deliver(), "done")
			w.expect(back(refunded, "", "done"), "refunds")
		})
	}

	t.Run("a refund that failed here stays failed, whatever comes of it there", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.append(w.capture(),
			domain.RefundRequested{RefundID: "re_1", Amount: 600},
			domain.RefundFailed{RefundID: "re_1", Code: domain.ProviderRefused, Message: "refused"})
		w.event("evt_1", "refund.updated")
		w.expectKind(w.deliver(), "done")
		w.expect(back(asked+" refund.failed", "", "done"), "")
	})

	t.Run("it happens once, however often the provider says so", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.gaveBack()
		w.event("evt_1", "refund.failed")
		w.provider.on("refunds", lists(refundOf("failed")))
		w.expectKind(w.deliver(), "done")
		w.event("evt_2", "charge.refund.updated")
		w.expectKind(w.deliver(), "done")
		w.expect(back(reversed, "refund.reversed", "done done"), "refunds")
	})

	t.Run("messages that speak of nothing of the kind ask nobody", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.gaveBack()
		w.put(fulfillment.ChargeReceiver, s, 5, "again")
		w.expectKind(w.deliver(), "done")
		w.expect(back(refunded, "", "done"), "")
	})

	t.Run("a look that was interrupted is repeated", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.gaveBack()
		w.event("evt_1", "refund.failed")
		w.provider.on("refunds", cut, lists(refundOf("failed")))
		w.expectKind(w.deliver(), "waits")
		w.expect(back(refunded, "", "pending"), "refunds")
		w.expectKind(w.deliver(), "done")
		w.expect(back(reversed, "refund.reversed", "done"), "refunds")
	})

	t.Run("a list that was read for a pending refund tells of the others too", func(t *testing.T) {
		t.Parallel()
		second := []any{"id", "rp_2", "amount", 100, "metadata", map[string]any{"refund_id": "re_2"}}
		w := newWorld(t)
		w.request(w.gaveBack(), "re_2", 100)
		w.provider.on("refunds",
			lists(refundOf("pending", second...), refundOf("failed")), lists(refundOf("pending", second...), refundOf("failed")))
		w.expectKind(w.deliver(), "waits")
		w.expect(back(refunded+asked+" refund.reversed", "refund.reversed", "pending"), "refunds")
		w.expectKind(w.deliver(), "waits")
		w.expect(back(refunded+asked+" refund.reversed", "refund.reversed", "pending"), "refunds")
	})

	t.Run("it is recorded before a refund that needs a human stops the charge", func(t *testing.T) {
		t.Parallel()
		of := func(id string) json.RawMessage {
			return refundOf("succeeded", "id", id, "amount", 100, "metadata", map[string]any{"refund_id": "re_2"})
		}
		w := newWorld(t)
		w.request(w.gaveBack(), "re_2", 100)
		w.provider.on("refunds", lists(of("rp_2"), of("rp_3"), refundOf("failed")))
		w.expectKind(w.deliver(), "parked")
		w.expect(back(refunded+asked+" refund.reversed", "refund.reversed", "dead"), "refunds")
	})

	t.Run("a refund that waits does not keep another from being reversed, nor the other way round", func(t *testing.T) {
		t.Parallel()
		second := []any{"id", "rp_2", "amount", 100, "metadata", map[string]any{"refund_id": "re_2"}}
		w := newWorld(t)
		w.append(w.gaveBack(), domain.RefundRequested{RefundID: "re_2", Amount: 100})
		w.event("evt_1", "refund.failed")
		w.provider.on("refunds",
			lists(refundOf("pending", second...)), lists(refundOf("failed")),
			lists(refundOf("succeeded", second...)), says(http.StatusOK, `{}`), lists(refundOf("succeeded", second...)))
		w.expectKind(w.deliver(), "waits")
		w.expect(back(refunded+asked+" refund.reversed", "refund.reversed", "pending"), "refunds refunds")
		w.expectKind(w.deliver(), "waits") // the pending one succeeded, and the look after it was lost
		w.expect(back(refunded+asked+" refund.reversed refund.succeeded", "refund.reversed refund.succeeded", "pending"), "refunds refunds")
		w.expectKind(w.deliver(), "done")
		w.expectCalls("refunds")
	})
}
