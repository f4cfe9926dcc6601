package fulfillment

import (
	"context"
	"fmt"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/stripe"
)

// reverseRefunds records the refunds that failed at the provider after they had
// succeeded there: the customer's bank sent the money back. Only that is taken
// from the list; a refund that failed here stays failed, whatever comes of it
// there, and reconciling with the provider's lists tells.
//
// Every list that is read for a pending refund is used, since the provider's
// event about another one may lie behind this message for as long as the pending
// one takes. A message that speaks of refunds has a list read for it.
//
// It comes after the pending refunds, so that nothing is committed between a look
// at the list and a send.
//
// If we die here: the message is not ended by any commit of this walk, so the
// next holder looks again, and finds reversed what was.
// Test: TestReversal/a_look_that_was_interrupted_is_repeated.
func (w *walk) reverseRefunds(ctx context.Context) error {
	unread := w.lookForGone(ctx)
	for _, r := range w.gone {
		id := w.believed()[r.ID]
		if id == "" {
			continue // somebody else was faster
		}
		reversal := domain.ReverseRefund{RefundID: id, ProviderRefund: r.ID, Message: failureOf(r)}
		if err := w.commit(ctx, reversal); err != nil {
			return fmt.Errorf("reverse refund %s: %w", id, err)
		}
	}
	return unread
}

func (w *walk) lookForGone(ctx context.Context) error {
	if !w.aboutRefunds || len(w.believed()) == 0 {
		return nil
	}
	var all []stripe.Refund
	for listed, err := range w.Provider.RefundsOf(ctx, w.s.Charge.PaymentIntent) {
		if err != nil {
			return w.outside(ctx, err, nil)
		}
		all = append(all, listed)
	}
	w.gone = w.goneOf(all)
	return nil
}

// goneOf are the refunds in a list that failed after they had succeeded.
func (w *walk) goneOf(list []stripe.Refund) []stripe.Refund {
	believed := w.believed()
	var gone []stripe.Refund
	for _, r := range list {
		if believed[r.ID] != "" && isFailed(r) {
			gone = append(gone, r)
		}
	}
	return gone
}

// believed are the ids of the refunds that succeeded, by the provider's.
func (w *walk) believed() map[string]string {
	believed := map[string]string{}
	for _, r := range w.s.Charge.Refunds {
		if r.Status == domain.RefundStatusSucceeded {
			believed[r.ProviderRefund] = r.ID
		}
	}
	return believed
}
