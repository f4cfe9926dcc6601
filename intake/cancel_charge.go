package intake

import (
	"context"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
)

// CancelCharge accepts the wish that a charge be canceled and answers the charge
// as it is. Whether the cancellation or a capture under way wins is decided
// later, at the provider. Refusals that are stored: ledger.ErrNotFound,
// domain.ErrFinished. Errors as AcceptCharge's.
func (in *Intake) CancelCharge(ctx context.Context, account Account, r Request, chargeID string) (Accepted, error) {
	return in.once(ctx, account, r, func(ctx context.Context, tenant *postgres.Tenant, _ time.Time) (decision, error) {
		s, err := own(ctx, tenant, account, chargeID)
		if err != nil {
			return decision{}, err
		}
		events, err := domain.Decide(s.Charge, domain.CancelCharge{})
		if err != nil {
			return decision{}, err
		}
		answer, err := accepted("/v1/charges/"+chargeID, domain.Fold(s.Charge, events...).View(s.At(1).OccurredAt))
		return decision{answer: answer, stream: s, events: events}, err
	})
}
