package intake

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/ledger"
)

// CancelCharge accepts a request to cancel a charge and answers the charge as it is.
// Whether the cancellation or a capture in flight wins is decided later, at the provider.
// Errors without an answer in r.Refusals: ledger.ErrNotFound, domain.ErrFinished, and those
// of idempotency.Receiver.
func (in *Intake) CancelCharge(ctx context.Context, account Account, r Request, chargeID string) (idempotency.Outcome, error) {
	return in.do(ctx, account, r, func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
		stream, err := in.load(ctx, account, chargeID)
		if err != nil {
			return idempotency.Answer{}, err
		}
		events, err := domain.Decide(stream.Charge, domain.CancelCharge{})
		if err != nil {
			return idempotency.Answer{}, err
		}
		if len(events) == 0 { // it is being canceled: only the key is stored
			return accepted("/v1/charges/"+chargeID, stream.View())
		}
		// The key comes first: the receiver claims it with the answer below.
		stream, err = ledger.Append(b, stream, r.cause(now), events...) // the event, which has no postings
		if err != nil {
			return idempotency.Answer{}, err
		}
		if err := r.announce(b, stream); err != nil { // the message
			return idempotency.Answer{}, err
		}
		return accepted("/v1/charges/"+chargeID, stream.View())
	})
}
