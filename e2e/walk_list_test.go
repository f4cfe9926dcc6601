package e2e_test

import (
	"context"
	"iter"
	"strings"

	"github.com/payonce/payonce/internal/audit"
)

// listedIntent is a payment intent as the provider lists it.
type listedIntent struct {
	ID             string            `json:"id"`
	Status         string            `json:"status"`
	AmountReceived int64             `json:"amount_received"`
	Currency       string            `json:"currency"`
	Metadata       map[string]string `json:"metadata"`
}

func intentOf(i listedIntent) (string, audit.Listed) {
	return i.ID, audit.Listed{
		ID: i.ID, Reference: i.Metadata["charge_id"], PaymentIntent: i.ID, Status: i.Status,
		Amount: i.AmountReceived, Currency: strings.ToUpper(i.Currency),
	}
}

// listedRefund is a refund as the provider lists it.
type listedRefund struct {
	ID            string            `json:"id"`
	Status        string            `json:"status"`
	Amount        int64             `json:"amount"`
	Currency      string            `json:"currency"`
	PaymentIntent string            `json:"payment_intent"`
	Metadata      map[string]string `json:"metadata"`
}

func refundOf(r listedRefund) (string, audit.Listed) {
	return r.ID, audit.Listed{
		ID: r.ID, Reference: r.Metadata["refund_id"], PaymentIntent: r.PaymentIntent, Status: r.Status,
		Amount: r.Amount, Currency: strings.ToUpper(r.Currency),
	}
}

// listed walks a list of the provider's, page by page.
func listed[S, T any](ctx context.Context, p *place, path string, of func(S) (string, T)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		cursor := ""
		for {
			var page struct {
				Data    []S  `json:"data"`
				HasMore bool `json:"has_more"`
			}
			if err := p.read(ctx, path+"?limit=100"+cursor, &page); err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, one := range page.Data {
				id, item := of(one)
				cursor = "&starting_after=" + id
				if !yield(item, nil) {
					return
				}
			}
			if !page.HasMore {
				return
			}
		}
	}
}
