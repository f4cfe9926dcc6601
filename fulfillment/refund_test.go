package fulfillment_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
)

// The tables of what a refund decides, and of what is recorded when the provider's lists are read.

func TestAttempt_refund(t *testing.T) {
	t.Parallel()
	rows := []row{
		given("an error of the provider is recorded and opens a new key, after a look at the list", "refunding",
			"refunds: refund/0:500 | refunds: refund/1:500 | refunds: refund/2:succeeded",
			"refund.attempt_failed waits | refund.attempt_failed waits | refund.succeeded"),
		given("a key of other parameters opens no other, since that request may be in flight", "refunding",
			"refunds: refund/0:other_parameters | refunds: refund/0:other_parameters | refunds:succeeded", "waits | waits | refund.succeeded"),
		given("once the provider has forgotten a key of other parameters, the refund is sent under it", "refunding",
			"refunds: refund/0:other_parameters | refunds: refund/0:succeeded", "waits | refund.succeeded"),
		given("a refund of other parameters that the list has is not sent", "refunding",
			"refunds: refund/0:other_parameters | refunds:succeeded@amount", "waits | dead"),
		given("the list is asked before the first send too", "refunding", "refunds: refund/0:succeeded", "refund.succeeded"),
		given("waiting for the provider counts no attempt", "refunding", "refunds: refund/0:pending | refunds:pending", "polls | polls"),
	}
	for name, kind := range unanswered {
		answer, end, _ := strings.Cut(kind, " ")
		rows = append(rows, row{
			name + " records nothing, keeps the key, and the list is asked first", "refunding",
			"refunds: refund/0:" + answer + " | refunds: refund/0:succeeded", end + " | refund.succeeded",
		})
	}
	decides(t, "", rows...)
}

// TestRefund_followsTheStateAtTheProvider has the state of the refund at the provider, in the answer to a send
// or in its list.
func TestRefund_followsTheStateAtTheProvider(t *testing.T) {
	t.Parallel()
	rows := []row{
		given("a response about another refund makes a dead letter, and nothing is recorded", "refunding", "refunds: refund/0:succeeded@reference", "dead"),
		given("a response about another payment's refund makes a dead letter, and nothing is recorded", "refunding",
			"refunds: refund/0:succeeded@reference@payment", "dead"),
	}
	for name, state := range map[string]string{
		"succeeded is a success":                            "succeeded refund.succeeded",
		"failed is a failure":                               "failed refund.failed",
		"canceled is a failure":                             "canceled refund.failed",
		"pending is looked at again later":                  "pending polls",
		"an action of the customer is waited for":           "requires_action polls",
		"an unknown state makes a dead letter":              "reticent dead",
		"a wrong amount makes a dead letter":                "succeeded@amount dead",
		"a wrong currency makes a dead letter":              "succeeded@currency dead",
		"another payment makes a dead letter":               "succeeded@payment dead",
		"a wrong amount makes a dead letter while it waits": "pending@amount dead",
	} {
		at, want, _ := strings.Cut(state, " ")
		rows = append(rows,
			row{"answered " + name, "refunding", "refunds: refund/0:" + at, want},
			given("listed "+name, "refunding", "refunds:"+at, want))
	}
	decides(t, "", rows...)
}

// TestRefund_list is about the read of the list before a send.
func TestRefund_list(t *testing.T) {
	t.Parallel()
	decides(t, "",
		given("refunds of others are not ours", "refunding", "refunds:succeeded@second,pending@outside refund/0:succeeded", "refund.succeeded"),
		given("one of ours among others is found", "refunding", "refunds:failed@second,succeeded,failed@outside", "refund.succeeded"),
		given("two that move money make a dead letter", "refunding", "refunds:pending@again,succeeded", "dead"),
		given("one that moves money stands before one that failed", "refunding", "refunds:failed@again,succeeded", "refund.succeeded"),
		given("a look that ends in a 500 sends and records nothing", "refunding", "refunds:500", "waits"),
		given("a look that is cut sends and records nothing", "refunding", "refunds:cut", "waits"),
	)
}

// TestRefund_refused is about sends that the provider did not execute.
func TestRefund_refused(t *testing.T) {
	t.Parallel()
	rows := []row{given("as long as the list cannot be read nothing is believed", "refunding",
		"refunds: refund/0:rejected refunds:cut | refunds:succeeded", "waits | refund.succeeded")}
	for name, answer := range map[string]string{"a refund of what was refunded": "rejected", "a refund that the card declines": "declined"} {
		rows = append(rows,
			given(name+" fails if it is not in the list", "refunding", "refunds: refund/0:"+answer+" refunds:", "refund.failed"),
			given(name+" succeeded if an earlier send is in the list", "refunding", "refunds: refund/0:"+answer+" refunds:succeeded", "refund.succeeded"))
	}
	decides(t, "", rows...)
}

func TestReversal(t *testing.T) {
	t.Parallel()
	rows := []row{
		given("it happens once, however often the provider says so", "refunded", "refunds:failed | refunds:failed", "refund.reversed | "),
		given("a read that was interrupted is repeated", "refunded", "refunds:cut | refunds:failed", "waits | refund.reversed"),
		given("a refund that is canceled after it succeeded is reversed", "refunded", "refunds:canceled", "refund.reversed"),
		given("a refund that failed here stays failed, whatever comes of it there", "refused", "refunds:succeeded", ""),
	}
	for name, list := range map[string]string{
		"a refund that succeeded there too": "succeeded", "a refund that is pending there again": "pending", "a refund that the list does not have": "",
		"another one's failure": "failed@second", "another try of ours that failed before": "failed@again,succeeded",
	} {
		rows = append(rows, given(name+" is not reversed", "refunded", "refunds:"+list, ""))
	}
	decides(t, "stripe.refund.failed", rows...)
	for _, name := range []string{"refund.updated", "charge.refund.updated", "charge.refunded"} {
		decides(t, "stripe."+name, given(name+" reverses", "refunded", "refunds:failed", "refund.reversed"))
	}
}

func TestObservedRefund(t *testing.T) {
	t.Parallel()
	decides(t, "stripe.charge.refunded",
		given("it counts against what is left, once", "captured", "refunds:succeeded@outside | refunds:succeeded@outside", "refund.observed | "),
		given("one that fails after it succeeded is reversed", "captured", "refunds:succeeded@outside | refunds:failed@outside", "refund.observed | refund.reversed"),
		given("one of ours that the stream has lost has our id", "captured", "refunds:succeeded | refunds:succeeded", "refund.observed | "),
		given("one that is pending is not recorded yet", "captured", "refunds:pending@outside", ""),
		given("one that failed is not recorded", "captured", "refunds:failed@outside", ""),
		given("one of another payment is not recorded", "captured", "refunds:succeeded@outside@payment", ""),
		given("a refund above the capture becomes a dead letter", "captured", "refunds:succeeded@outside@more", "dead"),
		given("a refund in another currency becomes a dead letter", "captured", "refunds:succeeded@outside@currency", "dead"),
		given("one that cannot be recorded keeps no other from it", "captured",
			"refunds:succeeded@outside@currency,succeeded", "refund.observed dead"),
		given("a pending refund of ours has its outcome", "refunding", "refunds:succeeded", "refund.succeeded"),
		given("one of ours with a wrong amount becomes a dead letter", "refunding", "refunds:failed@amount", "dead"),
		given("two of ours become a dead letter, and nothing is recorded", "refunding", "refunds:succeeded@again,succeeded", "dead"),
	)
	decides(t, "", given("a refund of ours that it leaves nothing for fails", "refunding",
		"refunds:succeeded@outside@all refund/0:rejected refunds:succeeded@outside@all", "refund.failed"))
}

func TestDispute(t *testing.T) {
	t.Parallel()
	const (
		opened     = "charge.dispute_opened"
		withdrawn  = opened + " charge.dispute_withdrawn"
		reinstated = withdrawn + " charge.dispute_reinstated"
		closed     = " charge.dispute_closed"
	)
	decides(t, "stripe.charge.dispute.updated",
		given("an inquiry moves nothing", "captured", "disputes:open", opened),
		given("an inquiry that ends moves nothing", "captured", "disputes:warning_closed", opened+closed),
		given("what is withdrawn is the merchant's, and its fee", "captured", "disputes:open@-1999", withdrawn),
		given("a won one is given back, however late its events are", "captured",
			"disputes:won@-1999@1999 | disputes:won@-1999@1999", reinstated+closed+" | "),
		given("each of many movements counts once", "captured",
			"disputes:open@-1999@-30@5 | disputes:open@-1999@-30@5@7", withdrawn+" charge.dispute_withdrawn charge.dispute_reinstated | charge.dispute_reinstated"),
		given("each has its share of an account in another currency", "captured", "disputes:lost@USD@-2150@20", reinstated+closed),
		given("a lost one is won", "captured", "disputes:lost@-1999 | disputes:won@-1999@1999", withdrawn+closed+" | charge.dispute_reinstated"+closed),
		given("a closed one goes on", "captured", "disputes:lost@-1999 | disputes:open@-1999", withdrawn+closed+" | charge.dispute_updated"),
		given("a read that was interrupted is repeated", "captured", "disputes:cut | disputes:open", "waits | "+opened),
		given("a dispute in another currency becomes a dead letter", "captured", "disputes:open@other_currency", "dead"),
		given("a list that is older than what another worker has recorded is read again", "captured",
			"disputes:lost | disputes:open^won disputes:won", opened+closed+" | "+strings.TrimSpace(closed)),
		given("a charge without outcome comes to it first", "started", "retrieve:succeeded disputes:open", "captured "+opened),
		given("a charge that took no money has none", "canceling", "cancel:canceled", "declined(canceled)"),
	)
}

// TestRecorded_inFull is what events say beside their names.
func TestRecorded_inFull(t *testing.T) {
	t.Parallel()
	records := func(message, after, calls string, want domain.Event) {
		m := newScripted(t, after)
		m.play(message, calls, 1)
		if diff := cmp.Diff(want, m.stream.Head().Event); diff != "" {
			t.Errorf("%s (-want +got):\n%s", calls, diff)
		}
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
