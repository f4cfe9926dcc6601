package stripe

import (
	"cmp"
	"context"
	"fmt"
	"iter"

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
	return pages(ctx, c, "list refunds of", intent, refundOf, func(r Refund) string { return r.ID },
		func(ctx context.Context, p stripego.ListParams, of *string) *stripego.V1List[*stripego.Refund] {
			return c.api.V1Refunds.List(ctx, &stripego.RefundListParams{ListParams: p, PaymentIntent: of})
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
	if r.Currency, err = received(sent.Currency, &r.Amount); err != nil {
		return Refund{}, fmt.Errorf("refund %s: %w", r.ID, err)
	}
	return r, nil
}
