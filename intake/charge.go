package intake

import (
	"context"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/ledger"
)

// Charge is a request for a charge: validated, and in the form that is
// fingerprinted.
type Charge struct {
	OrderID       string            `json:"order_id"`
	Amount        int64             `json:"amount"` // minor units
	Currency      string            `json:"currency"`
	PaymentMethod string            `json:"payment_method"`
	Items         []Item            `json:"items,omitempty"`
	Description   string            `json:"description,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
}

// Item is a quantity of one article.
type Item = domain.Item

// AcceptCharge accepts a charge: one read if the key has its answer, one read and one
// commit if it is new; without the read if the state of the key is known. Errors:
// domain.ErrInvalid and those of idempotency.Receiver.
func (in *Intake) AcceptCharge(ctx context.Context, account Account, r Request, c Charge) (idempotency.Outcome, error) {
	id, err := newID("ch_")
	if err != nil {
		return idempotency.Outcome{}, err
	}
	return in.do(ctx, account, r, func(_ context.Context, write writer) (idempotency.Answer, error) {
		stream, err := write(ledger.New(id), c.command(account))
		if err != nil {
			return idempotency.Answer{}, err
		}
		return accepted("/v1/charges/"+id, stream.View())
	})
}

func (c Charge) command(a Account) domain.RequestCharge {
	fees := domain.FeeSchedule{BasisPoints: a.FeeBasisPoints, Fixed: a.FeeFixed[c.Currency]}
	return domain.RequestCharge{
		MerchantID: a.MerchantID, OrderID: c.OrderID, Amount: c.Amount, Currency: domain.Currency(c.Currency), Fee: fees.Of(c.Amount),
		PaymentMethod: c.PaymentMethod, Items: c.Items, Description: c.Description, Metadata: c.Metadata, Notify: a.Notify,
	}
}
