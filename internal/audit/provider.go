package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/stripe"
)

// Lists returns the lists of the client's account, which are read when they are ranged over.
func Lists(ctx context.Context, client *stripe.Client) Provided {
	return Provided{
		Payments: translated(client.Intents(ctx), func(in stripe.Intent) Listed {
			return Listed{in.ID, in.Reference, in.ID, string(in.Status), in.AmountReceived, in.Currency, ""}
		}),
		Refunds: translated(client.Refunds(ctx, ""), func(r stripe.Refund) Listed {
			return Listed{r.ID, r.Reference, r.PaymentIntent, r.Status, r.Amount, r.Currency, ""}
		}),
		Disputes: translated(client.Disputes(ctx, ""), func(d stripe.Dispute) Listed {
			l := Listed{ID: d.ID, PaymentIntent: d.PaymentIntent, Currency: d.Currency, Status: cmp.Or(d.Closed, string(domain.DisputeOpen))}
			var moves []string
			for _, m := range d.Moved {
				moves = append(moves, m.ID)
				l.Amount += m.Fee - m.Amount
			}
			slices.Sort(moves)
			l.Moves = strings.Join(moves, " ")
			return l
		}),
	}
}

func translated[S any](list iter.Seq2[S, error], to func(S) Listed) iter.Seq2[Listed, error] {
	return func(yield func(Listed, error) bool) {
		for s, err := range list {
			if !yield(to(s), err) {
				return
			}
		}
	}
}

// AddHeld adds the payment intents and refunds of the charges as the provider holds them now. The error is
// of those that it does not show.
func (t *Timeline) AddHeld(ctx context.Context, client *stripe.Client) (silent error) {
	add := func(c TimelineCharge, what string, detail Detail) {
		t.Entries = append(t.Entries, TimelineEntry{At: t.AsOf, Kind: "provider", ChargeID: c.ID, What: what, Who: domain.Provider, Detail: detail})
	}
	for _, c := range t.Charges {
		if c.PaymentIntent == "" {
			continue
		}
		in, err := client.RetrieveIntent(ctx, c.PaymentIntent)
		if err != nil {
			silent = errors.Join(silent, fmt.Errorf("not shown: %w", err))
			continue
		}
		add(c, "payment_intent", Detail{
			"id": in.ID, "status": in.Status, "amount": in.Amount, "amount_received": in.AmountReceived,
			"currency": in.Currency, "reference": in.Reference, "created": in.Created,
		})
		for r, err := range client.Refunds(ctx, c.PaymentIntent) {
			if err != nil {
				silent = errors.Join(silent, fmt.Errorf("not shown: %w", err))
				continue
			}
			add(c, "refund", Detail{"id": r.ID, "status": r.Status, "amount": r.Amount, "currency": r.Currency, "reference": r.Reference})
		}
	}
	return silent
}
