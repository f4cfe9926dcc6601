package stripe

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	stripego "github.com/stripe/stripe-go/v85"
)

// Dispute is a customer's complaint at the bank about the payment of an intent, as the
// provider holds it.
type Dispute struct {
	ID            string
	PaymentIntent string
	Reason        string
	Closed        string // the provider's word for how it ended, "won" or "lost" for example; empty while it is open
	Amount        int64  // minor units of ISO 4217
	Currency      string // upper case, and that of the payment
	// Moved are the movements on the account's balance, in the order in which they happened. Those on
	// a balance in another currency say no fee.
	Moved []Movement
}

// Movement is a balance transaction: below zero where the provider took money. A fee that the
// provider took is above zero.
type Movement struct {
	ID          string
	Amount, Fee int64  // minor units of ISO 4217
	Currency    string // upper case, and that of the account's balance
}

// Disputes returns every dispute of an intent, or of the account if intent is "", newest first.
// An error ends the sequence; a list that has a dispute twice is Unavailable.
func (c *Client) Disputes(ctx context.Context, intent string) iter.Seq2[Dispute, error] {
	return pages(ctx, c, "list disputes of", intent, disputeOf, func(d Dispute) string { return d.ID },
		func(ctx context.Context, p stripego.ListParams, of *string) *stripego.V1List[*stripego.Dispute] {
			return c.api.V1Disputes.List(ctx, &stripego.DisputeListParams{ListParams: p, PaymentIntent: of})
		})
}

var disputeEnds = []stripego.DisputeStatus{
	stripego.DisputeStatusWon, stripego.DisputeStatusLost, stripego.DisputeStatusWarningClosed, stripego.DisputeStatusPrevented,
}

func disputeOf(sent *stripego.Dispute) (Dispute, error) {
	if err := checkObject(sent.Object, "dispute", sent.ID); err != nil {
		return Dispute{}, err
	}
	d := Dispute{ID: sent.ID, Reason: text(string(sent.Reason)), Amount: sent.Amount}
	if sent.PaymentIntent != nil {
		d.PaymentIntent = sent.PaymentIntent.ID
	}
	if slices.Contains(disputeEnds, sent.Status) {
		d.Closed = string(sent.Status)
	}
	var err error
	if d.Currency, err = received(sent.Currency, &d.Amount); err != nil {
		return Dispute{}, fmt.Errorf("dispute %s: %w", d.ID, err)
	}
	if slices.Contains(sent.BalanceTransactions, nil) {
		return Dispute{}, fmt.Errorf("dispute %s has a balance transaction that is none", d.ID)
	}
	transactions := slices.SortedStableFunc(slices.Values(sent.BalanceTransactions), func(a, b *stripego.BalanceTransaction) int {
		return cmp.Compare(a.Created, b.Created)
	})
	for _, t := range transactions {
		m := Movement{ID: t.ID, Amount: t.Amount, Fee: t.Fee}
		m.Currency, err = received(t.Currency, &m.Amount, &m.Fee)
		if err := cmp.Or(checkNames(t.ID), err); err != nil {
			return Dispute{}, fmt.Errorf("a balance transaction of dispute %s: %w", d.ID, err)
		}
		if m.Currency != d.Currency {
			m.Fee = 0
		}
		if m.Amount != 0 || m.Fee != 0 {
			d.Moved = append(d.Moved, m)
		}
	}
	return d, nil
}
