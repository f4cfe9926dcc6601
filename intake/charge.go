package intake

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/ledger"
)

// Charge is a request for a charge: validated, and in the form that is
// fingerprinted.
type Charge struct {
	OrderID       string            `json:"order_id"`
	Amount        int64             `json:"amount"` // minor units
	Currency      string            `json:"currency"`
	PaymentMethod string            `json:"payment_method"`
	Customer      string            `json:"customer,omitempty"` // the provider's, to whom PaymentMethod is attached
	Items         []domain.Item     `json:"items,omitempty"`
	Description   string            `json:"description,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	ReturnURL     *string           `json:"return_url,omitempty"`
	ExpiresAt     *string           `json:"expires_at,omitempty"` // as in RFC 3339
}

// OrderTakenError refuses a charge for an order that has one.
type OrderTakenError struct {
	Charge domain.View // pending or succeeded
}

func (e *OrderTakenError) Error() string { return "the order has the charge " + e.Charge.ID }

// AcceptCharge accepts a charge: one read if the key has its answer, one read and one commit if it is new. Before the
// commit it decides the deadline, the order and the first event; for OneChargePerOrder it reads the charge that holds
// the order. Errors: domain.ErrInvalid, ErrExpiresInPast, *OrderTakenError unless r.Refuse answers it, and Receive's.
func (in *Intake) AcceptCharge(ctx context.Context, r Request, c Charge) (idempotency.Result, error) {
	request, err := c.firstEvent(r.Merchant)
	if err != nil {
		return idempotency.Result{}, err
	}
	request.Reference = reference(r.Merchant.ID, r.Key)
	return in.accept(ctx, r, func(ctx context.Context, now time.Time) (decision, error) {
		if at := request.ExpiresAt; !at.IsZero() && !now.Before(at) {
			return decision{}, fmt.Errorf("accept a charge until %s: %w", at, ErrExpiresInPast)
		}
		if err := in.checkOrder(ctx, r.Merchant, c.OrderID); err != nil {
			return decision{}, err
		}
		events, err := domain.Open(request)
		return decision{stream: ledger.New(newID(now)), events: events}, err
	})
}

// reference is the name of a key's charge at the provider, two hashes: the merchant's, so that a
// policy can refuse another's reference; and the key's, which may hold personal data.
func reference(merchant string, key idempotency.Key) string {
	owner := sha256.Sum256([]byte(merchant))
	return "ref_" + hex.EncodeToString(owner[:8]) + nameOf(merchant, key)
}

// nameOf is the hash of a key, the same in each database.
func nameOf(merchant string, key idempotency.Key) string {
	sum := sha256.Sum256([]byte(merchant + "\x00" + key.Operation + "\x00" + key.Value)) // no part holds a NUL
	return hex.EncodeToString(sum[:16])
}

// checkOrder returns an OrderTakenError if a charge holds the order. The commit decides:
// held_orders_one_charge refuses it if a rival was first, and the next try finds the rival here.
//
// The holder may be the charge of an earlier try under this key. Then the key is taken, so the
// refusal is not stored, and idempotency.Receive replays the first answer.
// Test: TestAcceptCharge_onceForEachOrder.
func (in *Intake) checkOrder(ctx context.Context, m merchants.Merchant, order string) error {
	if !m.OneChargePerOrder {
		return nil
	}
	holder, err := ledger.LoadHolder(ctx, in.DB.Tenant(m.ID), m.ID, order)
	switch {
	case errors.Is(err, ledger.ErrNotFound), err == nil && holder.Charge.Status == domain.Failed: // it has just freed the order
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", idempotency.ErrUnknown, err)
	}
	return &OrderTakenError{Charge: holder.View()}
}

// ErrExpiresInPast refuses a charge that expires before it is accepted. It is not stored: the key is
// free for a corrected request. Nor does it replace the stored answer to an accepted one.
var ErrExpiresInPast = errors.New("the charge expires in the past")

// firstEvent is the first event of the charge, without its reference.
func (c Charge) firstEvent(m merchants.Merchant) (domain.ChargeRequested, error) {
	var expires time.Time
	if c.ExpiresAt != nil {
		at, err := time.Parse(time.RFC3339, *c.ExpiresAt)
		if err != nil {
			return domain.ChargeRequested{}, fmt.Errorf("expires_at: %w: %w", domain.ErrInvalid, err)
		}
		expires = at.UTC().Truncate(time.Millisecond)
	}
	fees := domain.FeeSchedule{BasisPoints: m.FeeBasisPoints, Fixed: m.FeeFixed[c.Currency]}
	return domain.ChargeRequested{Terms: domain.Terms{
		MerchantID: m.ID, OrderID: c.OrderID, Money: domain.Money{Amount: c.Amount, Currency: domain.Currency(c.Currency)}, Fee: fees.Of(c.Amount),
		PaymentMethod: c.PaymentMethod, Customer: c.Customer, Items: c.Items, Description: c.Description, Metadata: c.Metadata, Notify: m.HasWebhook,
		ReturnURL: *cmp.Or(c.ReturnURL, new(string)), ExpiresAt: expires, OneChargePerOrder: m.OneChargePerOrder,
	}}, nil
}

// CancelCharge accepts a cancellation, and answers the charge as it is. It takes the next
// version: a step in progress records nothing. Then fulfillment's cancelCharge asks the provider.
// Errors without an answer of r.Refuse: ledger.ErrNotFound, domain.ErrFinished, and those
// of idempotency.Receive.
func (in *Intake) CancelCharge(ctx context.Context, r Request, chargeID string) (idempotency.Result, error) {
	return in.accept(ctx, r, func(ctx context.Context, _ time.Time) (decision, error) {
		stream, err := in.load(ctx, r.Merchant.ID, chargeID)
		if err != nil {
			return decision{}, err
		}
		events, err := stream.Charge.RequestCancel() // none while it is being canceled
		return decision{stream: stream, events: events}, err
	})
}

// Abandon stores an answer under a free key, to any request: one that is still on its way gets it, and
// does nothing. For a key that a request has used the error is idempotency.ErrReused, also after the key
// has expired, and for one that was abandoned before and has expired it is idempotency.ErrExpired.
func (in *Intake) Abandon(ctx context.Context, r Request, answer idempotency.Answer) error {
	r.Fingerprint, r.Canonical = nil, nil
	_, err := in.receive(ctx, r, func(context.Context, *pgx.Batch, time.Time) (idempotency.Answer, error) { return answer, nil })
	return err
}
