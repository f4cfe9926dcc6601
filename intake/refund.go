package intake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
)

// ErrIncrement refuses a refund of an amount that the provider cannot move in the charge's
// currency: see domain.Currency.Increment. It is not stored: the key is free for a
// corrected request.
var ErrIncrement = errors.New("the provider does not move such an amount of this currency")

// Refund is a request to refund a captured charge: validated, and in the form that is
// fingerprinted.
type Refund struct {
	Amount *int64 `json:"amount,omitempty"` // minor units; all that is left if absent
	Reason string `json:"reason,omitempty"`
}

// RequestRefund accepts a refund of a charge. The amount is checked against the charge's
// stream and committed at its next version, so of rivals that together exceed the charge
// only some succeed. Errors without an answer of r.Refuse: ledger.ErrNotFound,
// domain.ErrNotCaptured, domain.ErrExceedsCaptured, domain.ErrTooManyRefunds, ErrIncrement, and
// those of idempotency.Receive.
func (in *Intake) RequestRefund(ctx context.Context, r Request, chargeID string, refund Refund) (idempotency.Result, error) {
	id := "re_" + nameOf(r.Merchant.ID, r.Key)
	request := domain.RefundRequested{RefundID: id, Amount: *cmp.Or(refund.Amount, new(int64)), Reason: refund.Reason, Notify: r.Merchant.HasWebhook}
	return in.accept(ctx, r, func(ctx context.Context, _ time.Time) (decision, error) {
		stream, err := in.load(ctx, r.Merchant.ID, chargeID)
		if err != nil {
			return decision{}, err
		}
		if increment := stream.Charge.Currency.Increment(); request.Amount%increment != 0 {
			return decision{}, fmt.Errorf("refund %d of %s, not a multiple of %d: %w", request.Amount, chargeID, increment, ErrIncrement)
		}
		events, err := stream.Charge.RequestRefund(request)
		return decision{stream, events, id}, err
	})
}
