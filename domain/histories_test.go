package domain_test

import (
	"slices"

	"github.com/payonce/payonce/domain"
)

// history is the stream of a charge in a state: a thousand cents, thirty of
// them our fee.
func history(state string) []domain.Event {
	bare, silent := charge(), charge()
	bare.Items = nil
	silent.Notify = false
	held := domain.InventoryReserved{Items: charge().Items}
	released := domain.InventoryReleased{Items: charge().Items}
	begun := domain.PaymentStarted{Provider: "stripe", PaymentIntent: "pi_1"}
	refusal, ended := domain.PaymentDeclined{Failure: stolen()}, domain.ChargeFailed{Failure: stolen()}
	switch state {
	case absent:
		return nil
	case requested:
		return []domain.Event{charge()}
	case requestedBare:
		return []domain.Event{bare}
	case reserved:
		return after(requested, held)
	case rejected:
		return after(
			requested,
			domain.InventoryRejected{Code: domain.OutOfStock},
			domain.ChargeFailed{Failure: domain.Failure{Code: domain.OutOfStock, Message: "an item of the order is out of stock"}},
		)
	case started:
		return after(reserved, begun)
	case startedBare:
		return after(requestedBare, begun)
	case attemptFailed:
		return after(started, domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500})
	case succeeded:
		return after(started, taken(), domain.ChargeSucceeded{})
	case succeededSilent:
		return []domain.Event{silent, held, begun, taken(), domain.ChargeSucceeded{}}
	case told:
		return after(succeeded, domain.MerchantNotified{EventID: "e", Type: "charge.succeeded"})
	case declined:
		return after(started, refusal, released, ended)
	case declinedUnbegun:
		return after(reserved, refusal, released, ended)
	case failedAndTold:
		return after(declined, domain.MerchantNotified{EventID: "e", Type: "charge.failed"})
	default:
		return append(cancelHistory(state), refundHistory(state)...)
	}
}

// cancelHistory is that of a charge which the merchant wants canceled.
func cancelHistory(state string) []domain.Event {
	asked := domain.ChargeCancelRequested{}
	released := domain.InventoryReleased{Items: charge().Items}
	given, ended := domain.PaymentDeclined{Failure: dropped()}, domain.ChargeFailed{Failure: dropped()}
	switch state {
	case canceling:
		return after(requested, asked)
	case cancelingBare:
		return after(requestedBare, asked)
	case cancelingReserved:
		return after(reserved, asked)
	case cancelingStarted:
		return after(started, asked)
	case cancelingStartedBare:
		return after(startedBare, asked)
	case canceled:
		return after(canceling, ended)
	case canceledBare:
		return after(cancelingBare, ended)
	case canceledReserved:
		return after(cancelingReserved, released, ended)
	case canceledStarted:
		return after(cancelingStarted, given, released, ended)
	case canceledStartedBare:
		return after(cancelingStartedBare, given, ended)
	case canceledTold:
		return after(canceledReserved, domain.MerchantNotified{EventID: "e", Type: "charge.failed", Version: 5})
	case declinedFirst:
		return after(cancelingStarted, history(declined)[3:]...)
	case capturedFirst:
		return after(cancelingStarted, taken(), domain.ChargeSucceeded{})
	default:
		return nil
	}
}

// refundHistory is that of a charge of which money went back, or was to.
func refundHistory(state string) []domain.Event {
	silent := back("re_1", 400)
	silent.Notify = false
	failed := domain.RefundFailed{RefundID: "re_1", ProviderRefund: "rp_1", Code: domain.ProviderRefused, Message: "the account is closed"}
	switch state {
	case refundPending:
		return after(succeeded, back("re_1", 400))
	case refundAttempted:
		return after(refundPending, domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500})
	case refundOfAll:
		return after(succeeded, back("re_1", 1000))
	case partlyRefunded:
		return after(refundPending, gone("re_1", "rp_1", 400))
	case fullyRefunded:
		return after(partlyRefunded, back("re_2", 600), gone("re_2", "rp_2", 600))
	case refundFailed:
		return after(refundPending, failed)
	case refundRefused:
		failed.ProviderRefund = ""
		return after(refundPending, failed)
	case refundReversed:
		return after(partlyRefunded, domain.RefundReversed{
			RefundID: "re_1", ProviderRefund: "rp_1", Amount: 400, Message: "the account is closed",
		})
	case refundsOfAllKind:
		failed.RefundID, failed.ProviderRefund = "re_3", "rp_3"
		return after(refundPending, back("re_2", 100), gone("re_2", "rp_2", 100), back("re_3", 50), failed)
	case refundTold:
		return after(told, back("re_1", 400), gone("re_1", "rp_1", 400),
			domain.MerchantNotified{EventID: "e", Type: "refund.succeeded", Version: 8})
	case refundSilent:
		return after(succeeded, silent, gone("re_1", "rp_1", 400))
	case toldLate:
		return after(partlyRefunded, domain.MerchantNotified{EventID: "e", Type: "charge.succeeded", Version: 5})
	default:
		return nil
	}
}

// after is the history of a state and what happened then.
func after(state string, events ...domain.Event) []domain.Event {
	return slices.Concat(history(state), events)
}

func charge() domain.ChargeRequested {
	return domain.ChargeRequested{
		MerchantID: "acme", OrderID: "order 1", Amount: 1000, Currency: "EUR", Fee: 30,
		PaymentMethod: "pm_card_visa", Items: []domain.Item{{SKU: "mug", Quantity: 2}},
		Description: "a mug", Metadata: map[string]string{"basket": "7"}, Notify: true,
	}
}

func taken() domain.PaymentCaptured {
	return domain.PaymentCaptured{Provider: "stripe", PaymentIntent: "pi_1", Amount: 1000, Currency: "EUR", Fee: 30}
}

// back is a request to refund, gone its success.
func back(id string, amount int64) domain.RefundRequested {
	return domain.RefundRequested{RefundID: id, Amount: amount, Reason: "a broken mug", Notify: true}
}

func gone(id, object string, amount int64) domain.RefundSucceeded {
	return domain.RefundSucceeded{RefundID: id, Provider: "stripe", ProviderRefund: object, Amount: amount}
}

func stolen() domain.Failure {
	return domain.Failure{Code: domain.CardDeclined, Message: "the card was declined", DeclineCode: "stolen_card"}
}

func dropped() domain.Failure {
	return domain.Failure{Code: domain.Canceled, Message: "the charge was canceled"}
}
