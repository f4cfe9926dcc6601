package fulfillment

import (
	"cmp"
	"context"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/stripe"
)

// observeDisputes records the disputes of a charge and every movement of their money.
func observeDisputes(provider Provider) *observer {
	var seen []stripe.Dispute
	return &observer{
		step: "dispute",
		list: func(ctx context.Context, intent string) (err error) {
			seen, err = collect(provider.Disputes(ctx, intent))
			return err
		},
		changes: func(f *findings) {
			for _, d := range seen {
				events, err := f.charge.ObserveDispute(observed(d))
				f.add(d.ID, events, err)
			}
		},
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
