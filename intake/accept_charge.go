package intake

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/postgres"
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

// AcceptCharge accepts a charge: one read when the key has its answer, one read
// and one commit when it is new; without the read where the request says what is known
// of the key. Errors: idempotency.ErrReused and ErrExpired, ErrInFlight,
// ErrUnavailable, domain.ErrInvalid.
func (in *Intake) AcceptCharge(ctx context.Context, account Account, r Request, c Charge) (Accepted, error) {
	id, err := newID("ch_")
	if err != nil {
		return Accepted{}, err
	}
	return in.once(ctx, account, r, func(_ context.Context, _ *postgres.Tenant, now time.Time) (decision, error) {
		return acceptCharge(account, c, id, now)
	})
}

func acceptCharge(account Account, c Charge, id string, now time.Time) (decision, error) {
	s := ledger.New(id)
	events, err := domain.Decide(s.Charge, domain.RequestCharge{
		MerchantID:    account.MerchantID,
		OrderID:       c.OrderID,
		Amount:        domain.Money{Amount: c.Amount, Currency: domain.Currency(c.Currency)},
		Fees:          account.fees(),
		PaymentMethod: c.PaymentMethod,
		Items:         c.Items,
		Description:   c.Description,
		Metadata:      c.Metadata,
		Notify:        account.Notify,
	})
	if err != nil {
		return decision{}, err
	}
	answer, err := accepted("/v1/charges/"+id, domain.Fold(s.Charge, events...).View(now))
	return decision{answer: answer, stream: s, events: events}, err
}

// newID makes an id that is time-ordered, so that new rows share index pages.
func newID(prefix string) (string, error) {
	random, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("make an id: %w", err)
	}
	return prefix + hex.EncodeToString(random[:]), nil
}

func (a Account) fees() domain.FeeSchedule {
	fixed := make(map[domain.Currency]int64, len(a.FeeFixed))
	for currency, amount := range a.FeeFixed {
		fixed[domain.Currency(currency)] = amount
	}
	return domain.FeeSchedule{BasisPoints: a.FeeBasisPoints, Fixed: fixed}
}
