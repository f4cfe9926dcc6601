package domain_test

import (
	"testing"

	"github.com/payonce/payonce/domain"
)

// The states in which a command can meet a charge, by what has happened to it.
const (
	absent          = "absent"
	requested       = "requested"
	requestedBare   = "requested without items"
	reserved        = "reserved"
	rejected        = "rejected"
	started         = "started"
	startedBare     = "started without items"
	attemptFailed   = "attempt failed"
	succeeded       = "succeeded"
	declined        = "declined"
	declinedUnbegun = "declined before a payment intent"
	told            = "succeeded and told"
	failedAndTold   = "declined and told"
	succeededSilent = "succeeded without webhook"
)

// states lists all of the above.
func states() []string {
	return []string{
		absent, requested, requestedBare, reserved, rejected, started, startedBare, attemptFailed,
		succeeded, declined, declinedUnbegun, told, failedAndTold, succeededSilent,
	}
}

// history is the stream of a charge in a state: a thousand cents, thirty of
// them our fee.
func history(state string) []domain.Event {
	first := charge()
	bare, silent := first, first
	bare.Items = nil
	silent.Notify = false
	held := domain.InventoryReserved{Items: first.Items}
	begun := domain.PaymentStarted{Provider: "stripe", PaymentIntent: "pi_1"}
	taken := domain.PaymentCaptured{Provider: "stripe", PaymentIntent: "pi_1", Amount: 1000, Currency: "EUR", Fee: 30}
	refusal := domain.PaymentDeclined{Failure: stolen()}
	released := domain.InventoryReleased{Items: first.Items}
	ended := domain.ChargeFailed{Failure: stolen()}
	notified := domain.MerchantNotified{EventID: "e", Type: "charge.succeeded"}
	switch state {
	case requested:
		return []domain.Event{first}
	case requestedBare:
		return []domain.Event{bare}
	case reserved:
		return []domain.Event{first, held}
	case rejected:
		return []domain.Event{
			first,
			domain.InventoryRejected{Code: domain.OutOfStock},
			domain.ChargeFailed{Failure: domain.Failure{Code: domain.OutOfStock, Message: "an item of the order is out of stock"}},
		}
	case started:
		return []domain.Event{first, held, begun}
	case startedBare:
		return []domain.Event{bare, begun}
	case attemptFailed:
		return []domain.Event{first, held, begun, domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500}}
	case succeeded:
		return []domain.Event{first, held, begun, taken, domain.ChargeSucceeded{}}
	case declined:
		return []domain.Event{first, held, begun, refusal, released, ended}
	case declinedUnbegun:
		return []domain.Event{first, held, refusal, released, ended}
	case told:
		return []domain.Event{first, held, begun, taken, domain.ChargeSucceeded{}, notified}
	case failedAndTold:
		return []domain.Event{
			first, held, begun, refusal, released, ended,
			domain.MerchantNotified{EventID: "e", Type: "charge.failed"},
		}
	case succeededSilent:
		return []domain.Event{silent, held, begun, taken, domain.ChargeSucceeded{}}
	default:
		return nil
	}
}

// in is a charge in a state.
func in(state string) domain.Charge {
	return domain.Fold(domain.Charge{ID: "ch_1"}, history(state)...)
}

func charge() domain.ChargeRequested {
	return domain.ChargeRequested{
		MerchantID: "acme", OrderID: "order 1", Amount: 1000, Currency: "EUR", Fee: 30,
		PaymentMethod: "pm_card_visa", Items: []domain.Item{{SKU: "mug", Quantity: 2}},
		Description: "a mug", Metadata: map[string]string{"basket": "7"}, Notify: true,
	}
}

func stolen() domain.Failure {
	return domain.Failure{Code: domain.CardDeclined, Message: "the card was declined", DeclineCode: "stolen_card"}
}

func TestEveryHistoryOfTheTestsIsLegal(t *testing.T) {
	t.Parallel()
	for _, state := range states() {
		if _, err := domain.Replay(history(state)); err != nil {
			t.Errorf("%s: %v", state, err)
		}
	}
}
