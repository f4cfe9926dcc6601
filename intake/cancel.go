package intake

import (
	"context"
	"time"

	"github.com/payonce/payonce/idempotency"
)

// CancelCharge accepts a request to cancel a charge and answers the charge as it is.
// Whether the cancellation or a capture in flight wins is decided later, at the provider.
// Errors without an answer of r.Refuse: ledger.ErrNotFound, domain.ErrFinished, and those
// of idempotency.Receive.
func (in *Intake) CancelCharge(ctx context.Context, account Account, r Request, chargeID string) (idempotency.Result, error) {
	return in.do(ctx, account, r, func(ctx context.Context, _ time.Time, write writer) (idempotency.Answer, error) {
		stream, err := in.load(ctx, account, chargeID)
		if err != nil {
			return idempotency.Answer{}, err
		}
		events, refused := stream.Charge.RequestCancel() // none while it is being canceled: only the key is stored
		if stream, err = write(stream, events, refused); err != nil {
			return idempotency.Answer{}, err
		}
		return accepted("/v1/charges/"+chargeID, stream.View()), nil
	})
}

// Abandon takes a key that is free, with an answer to any request under it: one that is
// still on its way does nothing. For a key that a request has used the error is
// idempotency.ErrReused, or ErrExpired.
func (in *Intake) Abandon(ctx context.Context, account Account, r Request, answer idempotency.Answer) error {
	r.Fingerprint, r.Canonical = nil, nil
	_, err := in.do(ctx, account, r, func(context.Context, time.Time, writer) (idempotency.Answer, error) { return answer, nil })
	return err
}
