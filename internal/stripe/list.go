package stripe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/cenkalti/backoff/v5"
	stripego "github.com/stripe/stripe-go/v85"
)

// The states of a refund. Only RefundSucceeded means that the money moved, and
// even then the provider may fail the refund later. A refund of other origin may
// have no state.
const (
	RefundPending        = "pending"
	RefundRequiresAction = "requires_action"
	RefundSucceeded      = "succeeded"
	RefundFailed         = "failed"
	RefundCanceled       = "canceled"
)

// Refund is a refund of an intent, as the provider holds it.
type Refund struct {
	ID            string
	PaymentIntent string
	Reference     string // the id of our refund (metadata refund_id), empty on a refund of other origin
	Status        string
	FailureReason string // the provider's word for why it failed, "expired_or_canceled_card" for example; may be empty
	Amount        int64  // minor units of ISO 4217
	Currency      string // upper case
}

// RefundParams describe one refund.
type RefundParams struct {
	Reference     string // the id of our refund
	PaymentIntent string
	Amount        int64 // ISO 4217 minor units of Currency, which is the intent's
	Currency      string
}

// CreateRefund asks for a refund. Its result may be pending, or failed although
// there is no error.
//
// A refund has no object of its own before it is sent, so after an attempt
// whose outcome is open the caller looks for its Reference among Refunds
// first.
func (c *Client) CreateRefund(ctx context.Context, key string, p RefundParams) (r Refund, err error) {
	defer wrap(&err, "create refund "+p.Reference+" of", p.PaymentIntent)
	amount, err := sentAmount(p.Amount, p.Currency)
	if err := cmp.Or(checkNames(key, p.PaymentIntent), err); err != nil {
		return Refund{}, err
	}
	params := &stripego.RefundCreateParams{
		PaymentIntent: stripego.String(p.PaymentIntent),
		Amount:        new(amount),
		Metadata:      map[string]string{metadataRefund: p.Reference},
	}
	params.SetIdempotencyKey(key)
	return ask(ctx, c, func(ctx context.Context) (*stripego.Refund, error) {
		return c.api.V1Refunds.Create(ctx, params)
	}, refundOf)
}

// Refunds returns every refund of an intent, or of the account if intent is "", whatever its
// state, newest first. An error ends the sequence; a list that has a refund twice is Unavailable.
func (c *Client) Refunds(ctx context.Context, intent string) iter.Seq2[Refund, error] {
	return pages(ctx, c, "list refunds of "+cmp.Or(intent, "the account"), refundOf, func(r Refund) string { return r.ID },
		func(ctx context.Context, p stripego.ListParams) *stripego.V1List[*stripego.Refund] {
			return c.api.V1Refunds.List(ctx, &stripego.RefundListParams{ListParams: p, PaymentIntent: given(intent)})
		})
}

func refundOf(sent *stripego.Refund) (Refund, error) {
	if err := checkObject(sent.Object, "refund", sent.ID); err != nil {
		return Refund{}, err
	}
	r := Refund{
		ID:            sent.ID,
		Reference:     sent.Metadata[metadataRefund],
		Status:        string(sent.Status),
		FailureReason: text(string(sent.FailureReason)),
		Amount:        sent.Amount,
	}
	if sent.PaymentIntent != nil {
		r.PaymentIntent = sent.PaymentIntent.ID
	}
	var err error
	if r.Currency, err = convert(string(sent.Currency), false, &r.Amount); err != nil {
		return Refund{}, fmt.Errorf("refund %s: %w", r.ID, err)
	}
	return r, nil
}

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
	return pages(ctx, c, "list disputes of "+cmp.Or(intent, "the account"), disputeOf, func(d Dispute) string { return d.ID },
		func(ctx context.Context, p stripego.ListParams) *stripego.V1List[*stripego.Dispute] {
			return c.api.V1Disputes.List(ctx, &stripego.DisputeListParams{ListParams: p, PaymentIntent: given(intent)})
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
	if d.Currency, err = convert(string(sent.Currency), false, &d.Amount); err != nil {
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
		m.Currency, err = convert(string(t.Currency), false, &m.Amount, &m.Fee)
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

const (
	pageSize = 100 // the largest that Stripe allows
	// pageTries are those of a later page: what was read before it is not lost because of one answer.
	pageTries = 7
)

// pages reads a list page by page; call says of what. stripe-go's own iterator takes any JSON object for an empty
// list, and does not end if an empty page says that there is more or if a cache returns one page for every cursor.
func pages[S, T any](
	ctx context.Context,
	c *Client,
	call string,
	read func(S) (T, error),
	id func(T) string,
	list func(ctx context.Context, p stripego.ListParams) *stripego.V1List[S],
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		fail := func(err error) { yield(*new(T), fmt.Errorf("%s: %w", call, err)) }
		seen, tries := map[string]bool{}, uint(1)
		params := stripego.ListParams{Limit: stripego.Int64(pageSize), Single: true}
		for more := true; more; tries = pageTries {
			l, err := backoff.Retry(ctx, func() (*stripego.V1List[S], error) {
				l, err := ask(ctx, c, func(ctx context.Context) (*stripego.V1List[S], error) {
					l := list(ctx, params)
					return l, l.Err()
				}, func(l *stripego.V1List[S]) (*stripego.V1List[S], error) { return l, nil })
				return l, paced(err)
			}, backoff.WithMaxTries(tries))
			if err == nil && (l.Data() == nil || len(l.Data()) == 0 && l.Meta().HasMore) {
				err = unavailable(errors.New("the answer is no list, or an empty page that says there is more"))
			}
			if err != nil {
				fail(err)
				return
			}
			for _, sent := range l.Data() {
				item, err := read(sent)
				if err == nil && seen[id(item)] {
					err = fmt.Errorf("the list repeats itself: it has %s twice", id(item))
				}
				if err != nil {
					fail(unavailable(err))
					return
				}
				if !yield(item, nil) {
					return
				}
				seen[id(item)] = true
				params.StartingAfter = stripego.String(id(item))
			}
			more = l.Meta().HasMore
		}
	}
}

// paced is an error of a page as package backoff reads it: a certain one is not asked for again, and the
// provider says when to ask.
func paced(err error) error {
	e, ok := errors.AsType[*Error](err)
	switch {
	case !ok:
		return err
	case e.Kind != Unavailable && e.Kind != Failed:
		return backoff.Permanent(err)
	case e.RetryAfter > 0:
		return fmt.Errorf("%w; %w", err, &backoff.RetryAfterError{Duration: e.RetryAfter})
	}
	return err
}
