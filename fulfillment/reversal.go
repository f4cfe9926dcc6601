package fulfillment

import (
	"context"
	"fmt"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/stripe"
)

// reverseRefunds looks for refunds that failed at the provider after they had
// succeeded there: the customer's bank sent the money back. Only that is taken
// from the list; a refund that failed here stays failed, whatever comes of it
// there, and reconciling with the provider's lists tells.
//
// If we die here: the message is not ended by any commit of this look, so the
// next holder looks again, and finds reversed what was.
// Test: TestReversal/a_look_that_was_interrupted_is_repeated.
func (w *walk) reverseRefunds(ctx context.Context) error {
	believed := map[string]domain.Refund{} // by the provider's id
	for _, r := range w.s.Charge.Refunds {
		if r.Status == domain.RefundStatusSucceeded {
			believed[r.ProviderRefund] = r
		}
	}
	if len(believed) == 0 {
		return nil
	}
	var gone []stripe.Refund
	for listed, err := range w.Provider.RefundsOf(ctx, w.s.Charge.PaymentIntent) {
		if err != nil {
			return w.outside(ctx, err, nil)
		}
		if _, ours := believed[listed.ID]; ours && isFailed(listed) {
			gone = append(gone, listed)
		}
	}
	for _, r := range gone {
		id := believed[r.ID].ID
		reversal := domain.ReverseRefund{RefundID: id, ProviderRefund: r.ID, Message: failureOf(r)}
		if err := w.commit(ctx, reversal); err != nil {
			return fmt.Errorf("reverse refund %s: %w", id, err)
		}
	}
	return nil
}
