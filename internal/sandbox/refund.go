package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"

	"github.com/jackc/pgx/v5"
)

// refund is a row of refunds.
type refund struct {
	ID            string
	Amount        int64
	Charge        string
	Created       int64
	Currency      string
	FailureReason *string
	Metadata      map[string]string
	PaymentIntent string
	Reason        *string
	Status        string
}

// MarshalJSON writes Stripe's refund.
func (r *refund) MarshalJSON() ([]byte, error) {
	members := map[string]any{
		"id": r.ID, "object": "refund", "amount": r.Amount, "charge": r.Charge, "created": r.Created, "currency": r.Currency,
		"destination_details": map[string]any{"type": "card", "card": map[string]any{"type": "refund"}},
		"metadata":            r.Metadata, "payment_intent": r.PaymentIntent, "reason": r.Reason, "status": r.Status,
	}
	if r.FailureReason != nil {
		members["failure_reason"] = r.FailureReason
	}
	return json.Marshal(shaped(members, nullOfRefund))
}

const selectRefund = `
select id, payment_intent, charge, amount, currency, status, failure_reason,
       reason, metadata, extract(epoch from created_at)::bigint as created
from refunds
`

const insertRefund = `
insert into refunds (
  id, payment_intent, charge, amount, currency, status, failure_reason, reason, metadata, created_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, to_timestamp($10))`

// createRefund refunds part of a capture, or all that is left of it.
func (s *Sandbox) createRefund(ctx context.Context, tx pgx.Tx, b *pgx.Batch, c *call) (answer, error) {
	p := c.params
	target, charge := p.text("payment_intent"), p.text("charge")
	amount := p.amount("amount")
	reason := p.word("reason", "", "duplicate", "fraudulent", "requested_by_customer")
	metadata := p.metadata()
	switch {
	case target == "" && charge == "":
		p.refuse(missing("payment_intent"))
	case target != "" && charge != "":
		p.refuse(invalid("", "charge", "Give either payment_intent or charge."))
	}
	if err := p.done(); err != nil {
		return answer{}, err
	}
	i, err := lockRefunded(ctx, tx, target, charge)
	if err != nil {
		return answer{}, err
	}
	r := &refund{Amount: amount, Metadata: metadata}
	if reason != "" {
		r.Reason = &reason
	}
	return s.refundIntent(b, c, i, r), nil
}

// refundIntent refunds r.Amount of the locked intent, or all that is left where it is 0.
func (s *Sandbox) refundIntent(b *pgx.Batch, c *call, i *intent, r *refund) answer {
	left := i.Amount - i.AmountRefunded
	if refusal := refundable(i, r.Amount, left); refusal != nil {
		return refusal.answer()
	}
	r.ID, r.PaymentIntent, r.Charge, r.Currency = newID("re_"), i.ID, *i.LatestCharge, i.Currency
	r.Amount, r.Status, r.Created = cmp.Or(r.Amount, left), statusSucceeded, s.options.Now().Unix()
	if *i.PaymentMethod == methodRefundFail {
		reason := "expired_or_canceled_card"
		r.Status, r.FailureReason = "failed", &reason
	}
	b.Queue(insertRefund, r.ID, r.PaymentIntent, r.Charge, r.Amount, r.Currency, r.Status, r.FailureReason, r.Reason, r.Metadata, r.Created)
	if r.Status == statusSucceeded {
		i.AmountRefunded += r.Amount
		s.save(b, i)
		s.emit(b, c, "charge.refunded", i.charge())
	}
	return object(http.StatusOK, r)
}

// refundable says why amount (0 for all that is left) cannot be refunded.
func refundable(i *intent, amount, left int64) *apiError {
	switch {
	case i.Status != statusSucceeded:
		return invalid("", "payment_intent", "This PaymentIntent (%s) does not have a successful charge to refund.", i.ID)
	case left == 0:
		return invalid("charge_already_refunded", "", "Charge %s has already been refunded.", *i.LatestCharge)
	case amount > left:
		return invalid("", "amount", "Refund amount (%d) is greater than unrefunded amount on charge (%d).", amount, left)
	}
	return indivisible(amount, i.Currency)
}

// lockRefunded locks the intent that a refund names, itself or by its charge.
func lockRefunded(ctx context.Context, tx pgx.Tx, target, charge string) (*intent, error) {
	if target != "" {
		return lockIntent(ctx, tx, target, noSuch(http.StatusBadRequest, "payment_intent", "payment_intent", target))
	}
	return one[intent](ctx, tx, selectIntent+`where latest_charge = $1 for update`, "ch_", charge, noSuch(http.StatusBadRequest, "charge", "charge", charge))
}

const pageOfRefunds = `
where position < $1
  and ($3 = '' or charge = $3)
  and ($4 = '' or payment_intent = $4)
order by position desc
limit $2`

func filterRefunds(p *params) []any { return []any{p.text("charge"), p.text("payment_intent")} }
