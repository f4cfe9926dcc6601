package stripe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"time"

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
// whose outcome is open the caller looks for its Reference among Refunds
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
	return ask(ctx, c, func(ctx context.Context) (*stripego.Refund, error) {
		return c.api.V1Refunds.Create(ctx, params)
	}, refundOf)
}

// Refunds returns every refund of an intent, or of the account if intent is "", whatever its
// state, newest first. An error ends the sequence; a list that has a refund twice is
// [UnavailableError].
func (c *Client) Refunds(ctx context.Context, intent string) iter.Seq2[Refund, error] {
	return pages(ctx, c, "list refunds of", intent, refundOf,
		func(ctx context.Context, p stripego.ListParams, of *string) *stripego.V1List[*stripego.Refund] {
			return c.api.V1Refunds.List(ctx, &stripego.RefundListParams{ListParams: p, PaymentIntent: of})
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

type listed interface{ id() string }

// A later page that has no answer is asked for again, so that what was read before is not lost.
const (
	pageRetries    = 6
	pageFirstPause = 250 * time.Millisecond
)

// pages reads a list of an intent, or of the account if intent is "", page by page. stripe-go's
// own iterator takes any JSON object for an empty list, and does not end if an empty page says
// that there is more or if a cache returns one page for every cursor.
func pages[S any, T listed](
	ctx context.Context,
	c *Client,
	call, intent string,
	read func(S) (T, error),
	list func(ctx context.Context, p stripego.ListParams, of *string) *stripego.V1List[S],
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var of *string
		if intent != "" {
			of = &intent
		}
		seen := make(map[string]bool)
		params := stripego.ListParams{Limit: stripego.Int64(pageSize), Single: true}
		for more, retries := true, 0; more; {
			answered := false
			items, err := ask(ctx, c, func(ctx context.Context) (*stripego.V1List[S], error) {
				l := list(ctx, params, of)
				return l, l.Err()
			}, func(l *stripego.V1List[S]) ([]T, error) {
				answered, more = true, l.Meta().HasMore
				return page(l, seen, read)
			})
			if err != nil && !answered && retries > 0 && awaitPage(ctx, pageRetries-retries, err) {
				retries--
				continue
			}
			if err != nil {
				var none T
				yield(none, fmt.Errorf("%s %s: %w", call, cmp.Or(intent, "the account"), err))
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if more {
				params.StartingAfter, retries = stripego.String(items[len(items)-1].id()), pageRetries
			}
		}
	}
}

// awaitPage pauses before a page is asked for again, for as long as the provider asks at least. It
// returns false if that changes nothing.
func awaitPage(ctx context.Context, retry int, err error) bool {
	pause := pageFirstPause << retry
	pause = pause/2 + rand.N(pause) //nolint:gosec // jitter
	away, isAway := errors.AsType[*UnavailableError](err)
	_, failed := errors.AsType[*FailedError](err)
	switch {
	case isAway && !away.NeedsOperator:
		pause = max(pause, away.RetryAfter)
	case !failed:
		return false
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
	return ctx.Err() == nil
}

// page returns the objects of a page and adds them to seen. It refuses a page that
// brings the end of the list no nearer.
func page[S any, T listed](l *stripego.V1List[S], seen map[string]bool, read func(S) (T, error)) ([]T, error) {
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
	return items, nil
}
