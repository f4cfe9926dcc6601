package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
)

const (
	statusNeedsResponse = "needs_response"
	statusWon           = "won"
	statusLost          = "lost"

	disputeFee = 1500 // minor units of the charge's currency
)

// disputed is a row of disputes, and Stripe's dispute.
type disputed struct {
	ID            string
	PaymentIntent string
	Charge        string
	Amount        int64
	Fee           int64
	Currency      string
	Status        string
	Movements     int
	Created       int64
}

// MarshalJSON writes Stripe's dispute.
func (d *disputed) MarshalJSON() ([]byte, error) {
	transactions := []any{}
	for n := range d.Movements {
		sign := int64(-1)
		if n%2 == 1 {
			sign = 1
		}
		transactions = append(transactions, map[string]any{
			"id": fmt.Sprintf("txn_%s_%d", d.ID, n+1), "object": "balance_transaction", "type": "adjustment",
			"source": d.ID, "currency": d.Currency, "amount": sign * d.Amount, "fee": -sign * d.Fee,
			"net": sign * (d.Amount + d.Fee), "created": d.Created,
		})
	}
	return json.Marshal(map[string]any{
		"id": d.ID, "object": "dispute", "amount": d.Amount, "balance_transactions": transactions, "charge": d.Charge,
		"created": d.Created, "currency": d.Currency, "evidence": map[string]any{}, "is_charge_refundable": true,
		"livemode": false, "metadata": map[string]any{}, "payment_intent": d.PaymentIntent, "reason": "fraudulent", "status": d.Status,
	})
}

const selectDispute = `
select id, payment_intent, charge, amount, fee, currency, status, movements, extract(epoch from created_at)::bigint as created
from disputes
`

const insertDispute = `
insert into disputes (id, payment_intent, charge, amount, fee, currency, status, movements, created_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, to_timestamp($9))`

const updateDispute = `
update disputes
set status = $2, movements = $3
where id = $1`

// dispute opens a dispute of all that an intent captured, once, and with an outcome, won or
// lost, ends it; another outcome ends it otherwise. Repeating a call does nothing.
func (s *Sandbox) dispute(r *http.Request) (answer, error) {
	var body struct {
		PaymentIntent string `json:"payment_intent"`
		Outcome       string `json:"outcome"`
	}
	if err := readControl(r, &body); err != nil {
		return answer{}, err
	}
	if body.Outcome != "" && body.Outcome != statusWon && body.Outcome != statusLost {
		return answer{}, refused(http.StatusBadRequest, "outcome is %q: give won, lost or none", body.Outcome)
	}
	return s.outside(r.Context(), body.PaymentIntent, func(ctx context.Context, tx pgx.Tx, b *pgx.Batch, i *intent) (answer, error) {
		known, err := collect[disputed](ctx, tx, selectDispute+`where payment_intent = $1`, i.ID)
		if err != nil {
			return answer{}, err
		}
		if len(known) == 0 {
			d := &disputed{
				ID: newID("du_"), PaymentIntent: i.ID, Charge: *i.LatestCharge, Amount: i.Amount, Fee: disputeFee,
				Currency: i.Currency, Status: statusNeedsResponse, Movements: 1, Created: s.options.Now().Unix(),
			}
			b.Queue(insertDispute, d.ID, d.PaymentIntent, d.Charge, d.Amount, d.Fee, d.Currency, d.Status, d.Movements, d.Created)
			s.emit(b, nil, "charge.dispute.created", d)
			s.emit(b, nil, "charge.dispute.funds_withdrawn", d)
			known = append(known, d)
		}
		d := known[0]
		if body.Outcome != "" && d.Status != body.Outcome {
			event := d.end(body.Outcome)
			b.Queue(updateDispute, d.ID, d.Status, d.Movements)
			s.emit(b, nil, "charge.dispute.closed", d)
			if event != "" {
				s.emit(b, nil, event, d)
			}
		}
		return object(http.StatusOK, d), nil
	})
}

// end ends a dispute, also one that has ended otherwise, and returns the event of the money that moves
// with it, "" if none does.
func (d *disputed) end(outcome string) (event string) {
	taken := d.Movements%2 == 1
	switch d.Status = outcome; {
	case outcome == statusWon && taken:
		event = "charge.dispute.funds_reinstated"
	case outcome == statusLost && !taken:
		event = "charge.dispute.funds_withdrawn"
	default:
		return ""
	}
	d.Movements++
	return event
}

// refundOutside refunds as the provider's dashboard does: without metadata of payonce.
// Repeating a call with the same amount does nothing.
func (s *Sandbox) refundOutside(r *http.Request) (answer, error) {
	var body struct {
		PaymentIntent string `json:"payment_intent"`
		Amount        int64  `json:"amount"`
	}
	if err := readControl(r, &body); err != nil {
		return answer{}, err
	}
	if body.Amount < 1 {
		return answer{}, refused(http.StatusBadRequest, "amount is %d: give minor units of 1 or more", body.Amount)
	}
	return s.outside(r.Context(), body.PaymentIntent, func(ctx context.Context, tx pgx.Tx, b *pgx.Batch, i *intent) (answer, error) {
		known, err := collect[refund](ctx, tx, selectRefund+`where payment_intent = $1 and amount = $2 and not metadata ? 'refund_id'`, i.ID, body.Amount)
		if err != nil {
			return answer{}, err
		}
		if len(known) > 0 {
			return object(http.StatusOK, known[0]), nil
		}
		return s.refundIntent(b, nil, i, &refund{Amount: body.Amount, Metadata: map[string]string{}}), nil
	})
}

// outside does in one commit what no request to the provider's API asked for.
func (s *Sandbox) outside(
	ctx context.Context, id string, do func(context.Context, pgx.Tx, *pgx.Batch, *intent) (answer, error),
) (a answer, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		i, err := lockIntent(ctx, tx, id, noSuch(http.StatusBadRequest, "payment_intent", "payment_intent", id))
		if err != nil {
			return err
		}
		if i.Status != statusSucceeded {
			return refused(http.StatusConflict, "payment intent %s is %s: only one that succeeded has money to move", i.ID, i.Status)
		}
		b := &pgx.Batch{}
		if a, err = do(ctx, tx, b, i); err != nil {
			return err
		}
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return fmt.Errorf("move money: %w", err)
		}
		return nil
	})
	if err == nil {
		s.nudge()
	}
	return a, err
}
