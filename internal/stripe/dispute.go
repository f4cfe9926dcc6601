package stripe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	stripego "github.com/stripe/stripe-go/v85"
)

// Dispute is a customer's complaint at the bank about the payment of an intent, as the
// provider holds it.
type Dispute struct {
	ID            string
	PaymentIntent string
	Reason        string
	// Closed is the provider's word for how it ended, "won" or "lost" for example; empty while
	// it is open.
	Closed string
	// Amount in minor units of ISO 4217.
	Amount int64
	// Currency is upper case, and that of the payment.
	Currency string
	// Moved are the movements on the account's balance, in the order in which they happened. Those on
	// a balance in another currency say no fee.
	Moved []Movement
}

// Movement is a balance transaction: below zero where the provider took money. A fee that the
// provider took is above zero.
type Movement struct {
	ID          string
	Amount, Fee int64 // minor units of ISO 4217
	// Currency is upper case, and that of the account's balance.
	Currency string
}

// Disputes returns every dispute of an intent, or of the account if intent is "", newest first.
// An error ends the sequence; a list that has a dispute twice is [UnavailableError].
func (c *Client) Disputes(ctx context.Context, intent string) iter.Seq2[Dispute, error] {
	return pages(ctx, c, "list disputes of", intent, disputeOf,
		func(ctx context.Context, p stripego.ListParams, of *string) *stripego.V1List[*stripego.Dispute] {
			return c.api.V1Disputes.List(ctx, &stripego.DisputeListParams{ListParams: p, PaymentIntent: of})
		})
}

func (d Dispute) id() string { return d.ID }

var disputeEnds = []stripego.DisputeStatus{
	stripego.DisputeStatusWon, stripego.DisputeStatusLost, stripego.DisputeStatusWarningClosed, stripego.DisputeStatusPrevented,
}

func disputeOf(sent *stripego.Dispute) (Dispute, error) {
	if sent.Object != "dispute" || checkID(sent.ID) != nil || sent.Currency == "" {
		return Dispute{}, errors.New("the answer holds no dispute")
	}
	d := Dispute{ID: sent.ID, Reason: text(string(sent.Reason)), Currency: strings.ToUpper(string(sent.Currency))}
	if sent.PaymentIntent != nil {
		d.PaymentIntent = sent.PaymentIntent.ID
	}
	if slices.Contains(disputeEnds, sent.Status) {
		d.Closed = string(sent.Status)
	}
	var err error
	if d.Amount, err = receivedAmount(sent.Amount, d.Currency); err != nil {
		return Dispute{}, fmt.Errorf("dispute %s: %w", d.ID, err)
	}
	transactions := slices.SortedStableFunc(slices.Values(sent.BalanceTransactions), func(a, b *stripego.BalanceTransaction) int {
		return cmp.Compare(a.Created, b.Created)
	})
	for _, t := range transactions {
		m, err := movementOf(t)
		if err != nil {
			return Dispute{}, fmt.Errorf("dispute %s: balance transaction %q: %w", d.ID, t.ID, err)
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

func movementOf(sent *stripego.BalanceTransaction) (m Movement, err error) {
	if checkID(sent.ID) != nil || sent.Currency == "" {
		return m, errors.New("the answer holds no balance transaction")
	}
	m.ID, m.Currency = sent.ID, strings.ToUpper(string(sent.Currency))
	signed := func(amount int64) int64 {
		received, wrong := receivedAmount(max(amount, -amount), m.Currency)
		err = errors.Join(err, wrong)
		if amount < 0 {
			return -received
		}
		return received
	}
	m.Amount, m.Fee = signed(sent.Amount), signed(sent.Fee)
	return m, err
}
