package domain_test

import (
	"testing"

	"github.com/payonce/payonce/domain"
)

func TestReplayRefusesCancels(t *testing.T) {
	t.Parallel()
	asked, released := domain.ChargeCancelRequested{}, domain.InventoryReleased{Items: charge().Items}
	refusal, given := domain.PaymentDeclined{Failure: stolen()}, domain.PaymentDeclined{Failure: dropped()}
	ended, over := domain.ChargeFailed{Failure: stolen()}, domain.ChargeFailed{Failure: dropped()}
	for _, test := range []struct {
		name   string
		stream []domain.Event
		next   domain.Event
	}{
		{"a cancel of nothing", history(absent), asked},
		{"a cancel that is requested twice", history(canceling), asked},
		{"a cancel after the success", history(succeeded), asked},
		{"a cancel after the failure", history(declined), asked},
		{"a second cancel after the first", history(canceled), asked},
		{"a cancel between capture and success", after(started, taken()), asked},
		{"a cancel between decline and failure", after(started, refusal, released), asked},
		{"a cancel between refused stock and failure", history(rejected)[:2], asked},
		{"stock released without a cancel", history(reserved), released},
		{"stock released under a started payment", history(cancelingStarted), released},
		{"stock released for a cancel twice", after(cancelingReserved, released), released},
		{"stock released for a cancel that was never held", history(canceling), released},
		{"a payment started after its stock was released", after(cancelingReserved, released), history(started)[2]},
		{"stock held after it was released", after(cancelingReserved, released), history(reserved)[1]},
		{"a charge canceled without a cancel", history(requested), over},
		{"a charge canceled without a cancel after a decline", after(started, refusal, released), over},
		{"a charge canceled without a cancel after refused stock", history(rejected)[:2], over},
		{"a charge canceled that keeps its stock", history(cancelingReserved), over},
		{"a charge canceled whose payment is open", history(cancelingStartedBare), over},
		{"a charge canceled that is captured", history(capturedFirst), over},
		{"a payment canceled without a cancel", history(started), given},
		{"stock refused because of a cancel", history(canceling), domain.InventoryRejected{Code: domain.Canceled}},
		{"a cancel with another reason", history(canceling), ended},
		{"a cancel with another reason after stock was released", after(cancelingReserved, released), ended},
		{"a capture after the cancel", history(canceledStarted), taken()},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			refuses(t, test.stream, test.next)
		})
	}
}

func TestReplayRefusesRefunds(t *testing.T) {
	t.Parallel()
	attempt := domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500}
	failed := domain.RefundFailed{RefundID: "re_1", ProviderRefund: "rp_1", Code: domain.ProviderRefused}
	reversed := domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_1", Amount: 400}
	about := func(version int) domain.Event { return domain.MerchantNotified{EventID: "e", Version: version} }
	for _, test := range []struct {
		name   string
		stream []domain.Event
		next   domain.Event
	}{
		{"a refund of nothing", history(absent), back("re_1", 400)},
		{"a refund before the capture", history(started), back("re_1", 400)},
		{"a refund between capture and success", after(started, taken()), back("re_1", 400)},
		{"a refund of a declined charge", history(declined), back("re_1", 400)},
		{"a refund of a canceled charge", history(canceled), back("re_1", 400)},
		{"a refund of no amount", history(succeeded), back("re_1", 0)},
		{"a refund of less than nothing", history(succeeded), back("re_1", -1)},
		{"a refund of more than was captured", history(succeeded), back("re_1", 1001)},
		{"a refund without id", history(succeeded), back("", 400)},
		{"a refund that is requested twice", history(refundPending), back("re_1", 400)},
		{"a refund that is requested again after it failed", history(refundFailed), back("re_1", 400)},
		{"a refund of more than a pending one leaves", history(refundPending), back("re_2", 601)},
		{"a refund of more than a success leaves", history(partlyRefunded), back("re_2", 601)},
		{"a refund of more than several leave", history(refundsOfAllKind), back("re_9", 501)},
		{"a refund when nothing is left", history(fullyRefunded), back("re_9", 1)},
		{"a failed attempt at no refund", history(succeeded), attempt},
		{"a failed attempt after the success", history(partlyRefunded), attempt},
		{"a failed attempt after the failure", history(refundFailed), attempt},
		{"a success of no refund", history(succeeded), gone("re_1", "rp_1", 400)},
		{"a success of more than requested", history(refundPending), gone("re_1", "rp_1", 401)},
		{"a success without a provider's object", history(refundPending), gone("re_1", "", 400)},
		{"a success by another refund's object", history(refundsOfAllKind), gone("re_1", "rp_2", 400)},
		{"a second success", history(partlyRefunded), gone("re_1", "rp_1", 400)},
		{"a success after the failure", history(refundFailed), gone("re_1", "rp_1", 400)},
		{"a success after the reversal", history(refundReversed), gone("re_1", "rp_1", 400)},
		{"a failure of no refund", history(succeeded), failed},
		{"a failure after the success", history(partlyRefunded), failed},
		{"a second failure", history(refundFailed), failed},
		{"a second failure without object", history(refundRefused), domain.RefundFailed{RefundID: "re_1"}},
		{"a failure after the reversal", history(refundReversed), failed},
		{
			"a failure by another refund's object", history(refundsOfAllKind),
			domain.RefundFailed{RefundID: "re_1", ProviderRefund: "rp_2", Code: domain.ProviderRefused},
		},
		{"a reversal of no refund", history(succeeded), reversed},
		{"a reversal before the success", history(refundPending), reversed},
		{"a reversal after the failure", history(refundFailed), reversed},
		{"a second reversal", history(refundReversed), reversed},
		{
			"a reversal of another amount", history(partlyRefunded),
			domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_1", Amount: 399},
		},
		{
			"a reversal by another object", history(partlyRefunded),
			domain.RefundReversed{RefundID: "re_1", ProviderRefund: "rp_2", Amount: 400},
		},
		{"a webhook about the request", history(refundPending), about(6)},
		{"a webhook about a failed attempt", history(refundAttempted), about(7)},
		{"a second webhook about one outcome", history(refundTold), about(8)},
		{"a second webhook about the charge", history(toldLate), about(5)},
		{"a webhook about a refund without one", history(refundSilent), about(7)},
		{"a webhook about a webhook", history(refundTold), about(9)},
		{"a webhook about an event before the first", history(refundTold), about(-1)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			refuses(t, test.stream, test.next)
		})
	}
}
