package e2e_test

import (
	"context"
	"iter"
	"strings"

	"github.com/payonce/payonce/internal/audit"
)

// listedObject is a payment intent or a refund as the provider lists it.
type listedObject struct {
	ID             string            `json:"id"`
	Status         string            `json:"status"`
	Amount         int64             `json:"amount"`
	AmountReceived int64             `json:"amount_received"`
	Currency       string            `json:"currency"`
	PaymentIntent  string            `json:"payment_intent"`
	Metadata       map[string]string `json:"metadata"`
}

func (o listedObject) intent() audit.Listed {
	return audit.Listed{
		ID: o.ID, Reference: o.Metadata["charge_id"], PaymentIntent: o.ID, Status: o.Status,
		Amount: o.AmountReceived, Currency: strings.ToUpper(o.Currency),
	}
}

func (o listedObject) refund() audit.Listed {
	return audit.Listed{
		ID: o.ID, Reference: o.Metadata["refund_id"], PaymentIntent: o.PaymentIntent, Status: o.Status,
		Amount: o.Amount, Currency: strings.ToUpper(o.Currency),
	}
}

// listed reads a list of the provider, page by page.
func listed(ctx context.Context, p *place, path string, as func(listedObject) audit.Listed) iter.Seq2[audit.Listed, error] {
	return func(yield func(audit.Listed, error) bool) {
		for after := ""; ; {
			var page struct {
				Data    []listedObject `json:"data"`
				HasMore bool           `json:"has_more"`
			}
			if err := readJSON(ctx, p.Sandbox.URL()+path+"?limit=100"+after, p.Secrets.Provider, &page); err != nil {
				yield(audit.Listed{}, err)
				return
			}
			for _, one := range page.Data {
				after = "&starting_after=" + one.ID
				if !yield(as(one), nil) {
					return
				}
			}
			if !page.HasMore {
				return
			}
		}
	}
}
