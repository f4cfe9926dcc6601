package fulfillment

import (
	"context"
	"fmt"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/stripe"
)

// honorCancel fails a charge that the merchant wants canceled, unless the money
// was taken first.
//
// A request that comes while a walk is under way takes the stream's next
// version, so the walk's next commit is refused and the walk begins anew, here.
// An intent that is recorded is canceled at the provider before the charge
// fails: whoever still holds a confirmation of it is refused there. An intent
// that was made and not recorded is never confirmed, for only a recorded one is.
//
// If we die here: before the provider canceled, nothing has changed. Between its
// cancel and our commit the next holder asks again, finds a canceled intent, and
// commits the failure.
// Test: TestCancel/a_holder_that_dies_between_cancel_and_commit_is_taken_over.
func (w *walk) honorCancel(ctx context.Context) error {
	c := w.s.Charge
	switch {
	case !c.CancelRequested:
		return nil
	case !c.Started():
		return w.commit(ctx, domain.FailCanceled{}, giveBack)
	}
	intent, err := w.Provider.CancelIntent(ctx, c.PaymentIntent)
	if err != nil {
		return w.outside(ctx, err, nil)
	}
	switch intent.Status {
	case stripe.Canceled:
		return w.commit(ctx, domain.FailCanceled{}, giveBack)
	case stripe.Succeeded, stripe.Processing:
		return w.settle(ctx, intent) // the capture was faster, or may be
	default:
		return stillOpen(intent)
	}
}

// stillOpen is for an intent that stays open although it was to be canceled:
// the charge does not fail before the provider says that it did.
func stillOpen(i stripe.Intent) error {
	return &inbox.WaitError{Err: fmt.Errorf("payment intent %s was to be canceled and is %s", i.ID, i.Status)}
}
