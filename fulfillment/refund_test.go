package fulfillment_test

import (
	"slices"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testrun"
)

// TestObservedRefund_wakesItsMessage, which has another key, so that it does not wait for its next read of the list.
func TestObservedRefund_wakesItsMessage(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]bool{"stripe.refund.updated": true, "": false} { // "": its own message
		m := newScripted(t, "refunding")
		m.play(message, "refunds:succeeded", 1)
		woken := slices.ContainsFunc(m.sent, func(s sentMessage) bool { return s.to == "fulfillment refund.ended" && s.key == "re_1" })
		if woken != want {
			t.Errorf("after %q it sends %v", message, m.sent)
		}
	}
}

// TestRecorded_inFull is what events say beside their names.
func TestRecorded_inFull(t *testing.T) {
	t.Parallel()
	records := func(message, after, calls string, want domain.Event) {
		m := newScripted(t, after)
		m.play(message, calls, 1)
		testrun.Same(t, calls, want, m.stream.Head().Event)
	}
	records("", "reserved", "create/0:500", domain.PaymentAttemptFailed{Stage: domain.StageCreate, StatusCode: 500, RequestID: "req_provider"})
	records("", "started", "retrieve:requires_confirmation confirm/3:500",
		domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500, RequestID: "req_provider"})
	records("", "refunding", "refunds: refund/0:500", domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500, RequestID: "req_provider"})
	records("", "refunding", "refunds: refund/0:succeeded", refundedBy())
	failed := domain.RefundFailed{RefundID: "re_1", Code: domain.ProviderRefused, Message: "for people"}
	records("", "refunding", "refunds: refund/0:rejected refunds:", failed)
	failed.ProviderRefund, failed.Message = "rp_1", "the refund failed at the provider: expired_card"
	records("", "refunding", "refunds:failed@expired", failed)
	records("stripe.refund.failed", "refunded", "refunds:canceled",
		domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_1", Amount: 600, Message: "the refund was canceled at the provider"})
	records("stripe.refund.created", "captured", "refunds:succeeded",
		domain.RefundObserved{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600, Notify: true})
	records("stripe.charge.dispute.created", "captured", "disputes:open",
		domain.DisputeOpened{DisputeID: "du_1", Provider: domain.Provider, Amount: 1999, Reason: "fraudulent"})
	records("stripe.charge.dispute.created", "captured", "disputes:open@-1999",
		domain.DisputeWithdrawn{DisputeMoved: domain.DisputeMoved{DisputeID: "du_1", Transaction: "txn_0", Amount: 1999, Fee: 15}})
}
