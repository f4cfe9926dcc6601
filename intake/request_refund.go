package intake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
)

// ErrStep refuses a refund of an amount that the provider cannot move in the charge's
// currency: see domain.Currency.Step. It is not stored: the key is free for a
// corrected request.
var ErrStep = errors.New("the provider does not move such an amount of this currency")

// Refund is a request to give back money of a captured charge: validated, and in
// the form that is fingerprinted.
type Refund struct {
	Amount *int64 `json:"amount,omitempty"` // minor units; all that is left if absent
	Reason string `json:"reason,omitempty"`
}

// RequestRefund accepts a refund of a charge. What it may give back is decided
// on the charge's stream and committed at its next version, so of rivals that
// together want too much only some succeed. Refusals that are stored:
// ledger.ErrNotFound, domain.ErrNotCaptured, domain.ErrExceedsCaptured. Errors are
// ErrStep and those of AcceptCharge.
func (in *Intake) RequestRefund(ctx context.Context, account Account, r Request, chargeID string, refund Refund) (Accepted, error) {
	id, err := newID("re_")
	if err != nil {
		return Accepted{}, err
	}
	command := domain.RequestRefund{RefundID: id, Reason: refund.Reason, Notify: account.Notify}
	if refund.Amount != nil {
		command.Amount = *refund.Amount
	}
	return in.once(ctx, account, r, func(ctx context.Context, tenant *postgres.Tenant, _ time.Time) (decision, error) {
		s, err := own(ctx, tenant, account, chargeID)
		if err != nil {
			return decision{}, err
		}
		if step := s.Charge.Amount.Currency.Step(); command.Amount%step != 0 {
			return decision{}, fmt.Errorf("refund %d of %s, not a multiple of %d: %w", command.Amount, chargeID, step, ErrStep)
		}
		events, err := domain.Decide(s.Charge, command)
		if err != nil {
			return decision{}, err
		}
		after := domain.Fold(s.Charge, events...)
		requested, _ := after.Refund(id)
		answer, err := accepted("/v1/charges/"+chargeID+"/refunds/"+id, after.RefundView(requested))
		return decision{answer: answer, stream: s, events: events}, err
	})
}
