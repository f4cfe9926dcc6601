package stripe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

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
	// Reference is the id of our refund (metadata refund_id), empty on a refund
	// of other origin.
	Reference string
	Status    string
	// FailureReason is the provider's word for why it failed,
	// "expired_or_canceled_card" for example. It may be empty.
	FailureReason string
	// Amount in minor units of ISO 4217.
	Amount int64
	// Currency is upper case.
	Currency string
}

// RefundParams describe one refund.
type RefundParams struct {
	// Reference is the id of our refund.
	Reference     string
	PaymentIntent string
	// Amount in ISO 4217 minor units of Currency, which is the intent's.
	Amount   int64
	Currency string
}

// CreateRefund asks for a refund. Its result may be pending, or failed although
// there is no error.
//
// A refund has no object of its own before it is sent, so after an attempt
// whose outcome is open the caller looks for its Reference among RefundsOf
// first.
func (c *Client) CreateRefund(ctx context.Context, key string, p RefundParams) (r Refund, err error) {
	defer wrap(&err, "create refund "+p.Reference+" of", p.PaymentIntent)
	amount, err := sentAmount(p.Amount, p.Currency)
	if err := cmp.Or(checkKey(key), checkID(p.PaymentIntent), err); err != nil {
		return Refund{}, err
	}
	params := &stripego.RefundCreateParams{
		PaymentIntent: stripego.String(p.PaymentIntent),
		Amount:        new(amount),
		Metadata:      map[string]string{metadataRefund: p.Reference},
	}
	params.SetIdempotencyKey(key)
	return request(ctx, c, func(ctx context.Context) (*stripego.Refund, error) {
		return c.api.V1Refunds.Create(ctx, params)
	}, refundOf)
}

// RetrieveRefund returns the refund as it is now.
func (c *Client) RetrieveRefund(ctx context.Context, id string) (r Refund, err error) {
	defer wrap(&err, "retrieve refund", id)
	if err := checkID(id); err != nil {
		return Refund{}, err
	}
	return request(ctx, c, func(ctx context.Context) (*stripego.Refund, error) {
		return c.api.V1Refunds.Retrieve(ctx, id, &stripego.RefundRetrieveParams{})
	}, only(id, refundOf))
}

// only reads an answer that must be about the object id.
func only[S any, T listed](id string, read func(S) (T, error)) func(S) (T, error) {
	return func(sent S) (T, error) {
		object, err := read(sent)
		if err == nil && object.id() != id {
			err = fmt.Errorf("the answer is about %s", object.id())
		}
		return object, err
	}
}

// RefundsOf returns every refund of the intent, whatever its state, newest
// first. An error ends the sequence; a list of more than 5000, or one that has a
// refund twice, is [UnavailableError].
func (c *Client) RefundsOf(ctx context.Context, intent string) iter.Seq2[Refund, error] {
	if err := checkID(intent); err != nil {
		// Without an intent the provider would list all refunds of the account.
		return func(yield func(Refund, error) bool) {
			yield(Refund{}, fmt.Errorf("list refunds of %s: %w", intent, err))
		}
	}
	return pages(ctx, c, "list refunds of "+intent, refundsOfIntent, refundOf,
		func(ctx context.Context, p stripego.ListParams) *stripego.V1List[*stripego.Refund] {
			return c.api.V1Refunds.List(ctx, &stripego.RefundListParams{ListParams: p, PaymentIntent: &intent})
		})
}

// Refunds returns every refund of the account, newest first, in pages of a
// hundred. An error ends the sequence; a list that has a refund twice is
// [UnavailableError].
func (c *Client) Refunds(ctx context.Context) iter.Seq2[Refund, error] {
	return pages(ctx, c, "list refunds", 0, refundOf,
		func(ctx context.Context, p stripego.ListParams) *stripego.V1List[*stripego.Refund] {
			return c.api.V1Refunds.List(ctx, &stripego.RefundListParams{ListParams: p})
		})
}

func (r Refund) id() string { return r.ID }

func refundOf(sent *stripego.Refund) (Refund, error) {
	if sent.Object != "refund" || checkID(sent.ID) != nil || sent.Currency == "" {
		return Refund{}, errors.New("the answer holds no refund")
	}
	r := Refund{
		ID:            sent.ID,
		Reference:     sent.Metadata[metadataRefund],
		Status:        string(sent.Status),
		FailureReason: text(string(sent.FailureReason)),
		Currency:      strings.ToUpper(string(sent.Currency)),
	}
	var err error
	if r.Amount, err = receivedAmount(sent.Amount, r.Currency); err != nil {
		return Refund{}, fmt.Errorf("refund %s: %w", r.ID, err)
	}
	if sent.PaymentIntent != nil {
		r.PaymentIntent = sent.PaymentIntent.ID
	}
	return r, nil
}

// pageSize is the largest that Stripe allows.
const pageSize = 100

// refundsOfIntent is more refunds than any intent has: payonce makes a hundred at
// most, and some are made by hand.
const refundsOfIntent = 5000

type listed interface{ id() string }

// pages reads a list page by page. A list of more than most objects is refused; 0
// means any number. stripe-go's own iterator takes any JSON object for an empty
// list, and does not end if an empty page says that there is more or if a cache
// returns one page for every cursor.
func pages[S any, T listed](
	ctx context.Context,
	c *Client,
	call string,
	most int,
	read func(S) (T, error),
	list func(context.Context, stripego.ListParams) *stripego.V1List[S],
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		seen := make(map[string]bool)
		params := stripego.ListParams{Limit: stripego.Int64(pageSize), Single: true}
		for more := true; more; {
			items, err := request(ctx, c, func(ctx context.Context) (*stripego.V1List[S], error) {
				l := list(ctx, params)
				return l, l.Err()
			}, func(l *stripego.V1List[S]) ([]T, error) {
				more = l.Meta().HasMore
				return page(l, seen, most, read)
			})
			if err != nil {
				var none T
				yield(none, fmt.Errorf("%s: %w", call, err))
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if more {
				params.StartingAfter = stripego.String(items[len(items)-1].id())
			}
		}
	}
}

// page returns the objects of a page and adds them to seen. It refuses a page that
// brings the end of the list no nearer.
func page[S any, T listed](l *stripego.V1List[S], seen map[string]bool, most int, read func(S) (T, error)) ([]T, error) {
	if l.Data() == nil {
		return nil, errors.New("the answer holds no list")
	}
	if len(l.Data()) == 0 && l.Meta().HasMore {
		return nil, errors.New("the answer is an empty page that says there is more")
	}
	items := make([]T, 0, len(l.Data()))
	for _, sent := range l.Data() {
		item, err := read(sent)
		if err != nil {
			return nil, err
		}
		if seen[item.id()] {
			return nil, fmt.Errorf("the list repeats itself: it has %s twice", item.id())
		}
		seen[item.id()] = true
		items = append(items, item)
	}
	if most > 0 && len(seen) > most {
		return nil, fmt.Errorf("the list does not end after %d", most)
	}
	return items, nil
}
