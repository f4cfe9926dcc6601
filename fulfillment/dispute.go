package fulfillment

import (
	"cmp"
	"context"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/stripe"
)

// readDisputes reads the disputes of a charge and every movement of their money.
func readDisputes(provider Provider) func(context.Context, string) (changes, error) {
	return func(ctx context.Context, intent string) (changes, error) {
		seen, err := collect(provider.Disputes(ctx, intent))
		if err != nil {
			return nil, err
		}
		return func(f *findings) {
			for _, d := range seen {
				events, err := f.charge.ObserveDispute(observed(d))
				f.add(d.ID, events, err)
			}
		}, nil
	}
}

func observed(d stripe.Dispute) domain.ObservedDispute {
	o := domain.ObservedDispute{
		ID: d.ID, Reason: d.Reason, Status: cmp.Or(domain.DisputeStatus(d.Closed), domain.DisputeOpen),
		Amount: domain.Money{Amount: d.Amount, Currency: domain.Currency(d.Currency)},
	}
	for _, m := range d.Moved {
		o.Moved = append(o.Moved, domain.DisputeMovement{
			Transaction: m.ID, Amount: m.Amount, Fee: m.Fee, Currency: domain.Currency(m.Currency),
		})
	}
	return o
}
