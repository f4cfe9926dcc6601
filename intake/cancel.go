package intake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
)

// CancelCharge accepts a request to cancel a charge and answers the charge as it is.
// Whether the cancellation or a capture in flight wins is decided later, at the provider.
// Errors without an answer of r.Refuse: ledger.ErrNotFound, domain.ErrFinished, and those
// of idempotency.Receiver.
func (in *Intake) CancelCharge(ctx context.Context, account Account, r Request, chargeID string) (idempotency.Result, error) {
	return in.do(ctx, account, r, func(ctx context.Context, _ time.Time, write writer) (idempotency.Answer, error) {
		stream, err := in.load(ctx, account, chargeID)
		if err == nil { // while it is being canceled, only the key is stored
			stream, err = write(stream, domain.CancelCharge{})
		}
		if err != nil {
			return idempotency.Answer{}, err
		}
		return accepted("/v1/charges/"+chargeID, stream.View())
	})
}

// LostPayment is a payment that was made under a key, and whose charge the database has lost.
type LostPayment struct {
	PaymentIntent string `json:"payment_intent"`
	Amount        int64  `json:"amount"` // minor units
	Currency      string `json:"currency"`
	Refunded      bool   `json:"refunded"` // by an operator
}

// selectLostPayment asks for both in one snapshot: what a worker has read is there once the
// recovery is not pending.
const selectLostPayment = `
select pending, coalesce(payment_intent, ''), coalesce(amount, 0), coalesce(currency, ''), coalesce(refunded, false)
  from recovery_pending() as pending
  left join lost_payment($1)
    on true`

var errPending = errors.New("payments that the database has lost are not read yet")

// Abandon takes a key that is free, with an answer to any request under it: one that is
// still on its way does nothing. For a key that a request has used the error is
// idempotency.ErrReused, or ErrExpired.
func (in *Intake) Abandon(ctx context.Context, account Account, r Request, answer idempotency.Answer) error {
	r.Fingerprint, r.Canonical = nil, nil
	_, err := in.do(ctx, account, r, func(context.Context, time.Time, writer) (idempotency.Answer, error) { return answer, nil })
	return err
}

// FindLostPayment returns the payment of an abandoned key, nil if there is none. Of several it is
// the newest. While a worker has yet to read which payments the database has lost, the error is
// idempotency.ErrUnknown.
func (in *Intake) FindLostPayment(ctx context.Context, account Account, r Request) (*LostPayment, error) {
	var found LostPayment
	var pending bool
	err := in.DB.Tenant(account.MerchantID).QueryRow(ctx, selectLostPayment, reference(account.MerchantID, r.Key)).
		Scan(&pending, &found.PaymentIntent, &found.Amount, &found.Currency, &found.Refunded)
	if err == nil && pending {
		err = errPending
	}
	if err != nil {
		return nil, fmt.Errorf("%w: read the lost payment of a key: %w", idempotency.ErrUnknown, err)
	}
	if found.PaymentIntent == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	return &found, nil
}
