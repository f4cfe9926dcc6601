package intake

import (
	"context"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
)

// CancelCharge accepts a request to cancel a charge and answers the charge as it is.
// Whether the cancellation or a capture in flight wins is decided later, at the provider.
// Errors without an answer of r.Refuse: ledger.ErrNotFound, domain.ErrFinished, and those
// of idempotency.Receiver.
func (in *Intake) CancelCharge(ctx context.Context, account Account, r Request, chargeID string) (idempotency.Outcome, error) {
	return in.do(ctx, account, r, func(ctx context.Context, _ time.Time, write writer) (idempotency.Answer, error) {
		stream, err := in.load(ctx, account, chargeID)
		if err == nil { // while it is being canceled, only the key is stored
			stream, err = write(stream, domain.CancelCharge{})
		}
		if err != nil {
			return idempotency.Answer{}, err
		}
		return accepted("/v1/charges/"+chargeID, stream.View())
	})
}
