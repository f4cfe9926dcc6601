package domain

import (
	"errors"
	"fmt"
)

// ErrIllegal is returned by Replay, wrapped, for a stream that no sequence of
// decisions could have made.
var ErrIllegal = errors.New("illegal event")

// Replay folds a whole stream and checks each event against the state it met.
// It is the auditor's fold; decisions use Evolve, because what is stored has
// happened.
func Replay(events []Event) (Charge, error) {
	var c Charge
	for i, e := range events {
		if !admits(c, e) {
			return c, fmt.Errorf("%w: %T at version %d", ErrIllegal, e, i+1)
		}
		c.apply(e)
	}
	return c, nil
}

// admits tells whether e may be the next event of c.
func admits(c Charge, e Event) bool {
	if _, opens := e.(ChargeRequested); opens != !c.Exists() {
		return false
	}
	stockSettled := c.Inventory == StepDone || c.Inventory == StepSkipped
	unbegun := c.CancelRequested && !c.Started() // canceled before anything could be paid
	switch e := e.(type) {
	case ChargeRequested:
		return e.Amount >= MinAmount && e.Amount <= MaxAmount && e.Fee >= 0 && e.Fee <= e.Amount
	case InventoryReserved:
		return c.Inventory == StepPending && c.Payment == StepPending
	case InventoryRejected:
		return c.Inventory == StepPending && c.Payment == StepPending && e.Code != Canceled
	case InventoryReleased:
		return c.Inventory == StepDone && (c.Payment == StepFailed || unbegun)
	case PaymentStarted:
		return stockSettled && c.Payment == StepPending && !c.Started() && e.PaymentIntent != ""
	case PaymentAttemptFailed:
		return stockSettled && c.Payment == StepPending
	case PaymentDeclined:
		return stockSettled && c.Payment == StepPending && c.mayFailFor(e.Code)
	case PaymentCaptured:
		return stockSettled && c.Payment == StepPending && c.Started() &&
			e.PaymentIntent == c.PaymentIntent &&
			e.Amount == c.Amount.Amount && e.Currency == c.Amount.Currency && e.Fee == c.Fee
	case ChargeSucceeded:
		return !c.Terminal() && c.Payment == StepDone
	case ChargeFailed:
		return !c.Terminal() && c.Inventory != StepDone && c.mayFailFor(e.Code) &&
			(c.Payment == StepFailed || c.Payment == StepSkipped || (unbegun && e.Code == Canceled))
	case ChargeCancelRequested:
		return !c.Terminal() && c.Payment == StepPending && !c.CancelRequested
	case RefundRequested:
		return c.admitsRequest(e)
	case RefundAttemptFailed:
		r, _ := c.Refund(e.RefundID)
		return r.Status == RefundStatusPending
	case RefundSucceeded:
		return c.admitsSuccess(e)
	case RefundFailed:
		return c.admitsFailure(e)
	case RefundReversed:
		return c.admitsReversal(e)
	case MerchantNotified:
		return c.Tells(e.about(c))
	default:
		return false
	}
}
