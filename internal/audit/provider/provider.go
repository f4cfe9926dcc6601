// Package provider asks the provider what it holds, for the audit and for timelines. It is apart from
// package audit, so that a program that migrates links no provider client.
package provider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/stripe"
)

// Lists returns the lists of an account, which are read when they are ranged over.
func Lists(ctx context.Context, client *stripe.Client) audit.Provided {
	return audit.Provided{
		Payments: translate(client.Intents(ctx), func(in stripe.Intent) audit.Listed {
			return audit.Listed{
				ID: in.ID, Reference: in.Reference, PaymentIntent: in.ID,
				Status: string(in.Status), Amount: in.AmountReceived, Currency: in.Currency,
			}
		}),
		Refunds: translate(client.Refunds(ctx, ""), func(r stripe.Refund) audit.Listed {
			return audit.Listed{
				ID: r.ID, Reference: r.Reference, PaymentIntent: r.PaymentIntent,
				Status: r.Status, Amount: r.Amount, Currency: r.Currency,
			}
		}),
		Disputes: translate(client.Disputes(ctx, ""), listedDispute),
	}
}

// listedDispute sums the movements of a dispute, each with its fee.
func listedDispute(d stripe.Dispute) audit.Listed {
	l := audit.Listed{ID: d.ID, PaymentIntent: d.PaymentIntent, Currency: d.Currency, Status: cmp.Or(d.Closed, string(domain.DisputeOpen))}
	ids := make([]string, 0, len(d.Moved))
	for _, m := range d.Moved {
		ids = append(ids, m.ID)
		l.Amount += m.Fee - m.Amount
	}
	slices.Sort(ids)
	l.Moves = strings.Join(ids, " ")
	return l
}

// translate turns a list of the provider's into another.
func translate[S any](list iter.Seq2[S, error], to func(S) audit.Listed) iter.Seq2[audit.Listed, error] {
	return func(yield func(audit.Listed, error) bool) {
		for s, err := range list {
			if !yield(to(s), err) {
				return
			}
		}
	}
}

// AddHeld adds the payment intents and refunds of a timeline's charges as the provider holds them now. Its error
// names what the provider did not show; the rest is added.
func AddHeld(ctx context.Context, client *stripe.Client, t *audit.Timeline) error {
	var silent []error
	for _, charge := range t.Charges {
		if charge.PaymentIntent == "" {
			continue
		}
		in, err := client.RetrieveIntent(ctx, charge.PaymentIntent)
		if err != nil {
			silent = append(silent, fmt.Errorf("not shown: %w", err))
			continue
		}
		detail := audit.Detail{
			"id": in.ID, "status": in.Status, "amount": in.Amount, "amount_received": in.AmountReceived,
			"currency": in.Currency, "reference": in.Reference, "created": in.Created,
		}
		if in.Decline != nil {
			detail["decline"] = in.Decline.String()
		}
		t.AddHeld(charge.ID, "payment_intent", domain.Provider, detail)
		for r, err := range client.Refunds(ctx, charge.PaymentIntent) {
			if err != nil {
				silent = append(silent, fmt.Errorf("not shown: %w", err))
				break
			}
			detail := audit.Detail{
				"id": r.ID, "status": r.Status, "amount": r.Amount, "currency": r.Currency, "reference": r.Reference,
			}
			if r.FailureReason != "" {
				detail["failure_reason"] = r.FailureReason
			}
			t.AddHeld(charge.ID, "refund", domain.Provider, detail)
		}
	}
	return errors.Join(silent...)
}
