package sandbox

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
)

// books is the body of GET /books: what happened, for whoever compares.
type books struct {
	Intents              []bookedIntent       `json:"intents"`
	Captures             []bookedCapture      `json:"captures"`
	Refunds              []bookedRefund       `json:"refunds"`
	Notifications        []bookedNotification `json:"notifications"`
	Requests             int64                `json:"requests"`
	DuplicatesSuppressed int64                `json:"duplicates_suppressed"`
}

type bookedIntent struct {
	Reference string `json:"reference"`
	ID        string `json:"id"`
	Status    string `json:"status"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
	Captures  int64  `json:"captures"`
}

type bookedCapture struct {
	Reference     string `json:"reference"`
	PaymentIntent string `json:"payment_intent"`
	Amount        int64  `json:"amount"`
	Currency      string `json:"currency"`
}

type bookedRefund struct {
	Reference     string `json:"reference"`
	PaymentIntent string `json:"payment_intent"`
	Amount        int64  `json:"amount"`
}

type bookedNotification struct {
	WebhookID  string `json:"webhook_id"`
	Reference  string `json:"reference"`
	Type       string `json:"type"`
	Deliveries int64  `json:"deliveries"`
	Effects    int64  `json:"effects"`
}

const selectBookedIntents = `
select coalesce(i.metadata ->> 'charge_id', '') as reference,
       i.id, i.status, i.amount, i.currency,
       coalesce(c.captures, 0) as captures
from payment_intents i
left join (
  select payment_intent, count(*) as captures
  from captures
  group by payment_intent) c on c.payment_intent = i.id
order by i.position`

const selectBookedCaptures = `
select coalesce(i.metadata ->> 'charge_id', '') as reference,
       c.payment_intent, c.amount, c.currency
from captures c
join payment_intents i on i.id = c.payment_intent
order by i.position, c.captured_at, c.id`

// selectBookedRefunds leaves out refunds that failed: no money moved.
const selectBookedRefunds = `
select coalesce(metadata ->> 'refund_id', '') as reference,
       payment_intent, amount
from refunds
where status = 'succeeded'
order by position`

const selectBookedNotifications = `
select e.webhook_id, e.reference, e.type, d.deliveries,
       count(*) over (partition by e.webhook_id) as effects
from shop_effects e
join (
  select webhook_id, count(*) as deliveries
  from shop_deliveries
  group by webhook_id) d on d.webhook_id = e.webhook_id
order by e.position`

const countRequests = `
select count(*), count(replay_of)
from requests`

// getBooks shows one moment: all parts are read from one snapshot.
func (s *Sandbox) getBooks(w http.ResponseWriter, r *http.Request) {
	if err := s.settle(r.Context()); err != nil {
		s.failControl(w, err)
		return
	}
	all, err := s.readBooks(r.Context())
	if err != nil {
		s.failControl(w, err)
		return
	}
	writeJSON(w, http.StatusOK, all)
}

func (s *Sandbox) readBooks(ctx context.Context) (books, error) {
	var all books
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var err error
		if all.Intents, err = booked[bookedIntent](ctx, tx, selectBookedIntents); err != nil {
			return err
		}
		if all.Captures, err = booked[bookedCapture](ctx, tx, selectBookedCaptures); err != nil {
			return err
		}
		if all.Refunds, err = booked[bookedRefund](ctx, tx, selectBookedRefunds); err != nil {
			return err
		}
		if all.Notifications, err = booked[bookedNotification](ctx, tx, selectBookedNotifications); err != nil {
			return err
		}
		return tx.QueryRow(ctx, countRequests).Scan(&all.Requests, &all.DuplicatesSuppressed)
	})
	if err != nil {
		return books{}, fmt.Errorf("read the books: %w", err)
	}
	return all, nil
}

// booked returns an empty slice, not nil, when there is nothing: [] in JSON.
func booked[T any](ctx context.Context, tx pgx.Tx, query string) ([]T, error) {
	rows, err := tx.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[T])
}

const selectReady = `
select count(*)
from payment_intents
where false`

// ready tells whether the books can be read.
func (s *Sandbox) ready(w http.ResponseWriter, r *http.Request) {
	var none int
	if err := s.pool.QueryRow(r.Context(), selectReady).Scan(&none); err != nil {
		s.failControl(w, fmt.Errorf("check the books: %w", err))
		return
	}
	writeJSON(w, http.StatusOK, struct{}{})
}

// failControl answers a control call or a notification that could not be
// carried out, and logs why.
func (s *Sandbox) failControl(w http.ResponseWriter, err error) {
	s.logger.Error("call not carried out", "error", err)
	refuseControl(w, http.StatusServiceUnavailable, "the sandbox cannot use its database")
}
