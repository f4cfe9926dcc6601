package restore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
)

// Lost is a lost payment that no charge has.
type Lost struct {
	PaymentIntent string    `json:"payment_intent"`
	Reference     string    `json:"reference"`
	Amount        int64     `json:"amount"` // minor units
	Currency      string    `json:"currency"`
	CreatedAt     time.Time `json:"created_at"`
	Adopted       bool      `json:"adopted"` // an operator returns the money
	Refund        string    `json:"refund"`  // the provider's, once it is made
}

const (
	selectUnadopted = `
select l.payment_intent,
       l.reference,
       l.amount,
       l.currency,
       l.created_at,
       a.payment_intent is not null as adopted,
       coalesce(a.refund, '')       as refund
  from lost_payments l
  left join adoptions a
    on a.payment_intent = l.payment_intent
 where a.charge_id is null
   and not exists (
         select
           from ledger_events e
          where e.type like 'payment.started.v%'
            and (e.data ->> 'payment_intent') collate "C" = l.payment_intent)
 order by l.created_at, l.payment_intent`

	// lockAdoptions waits for the charges that are starting a payment, and they wait for it.
	lockAdoptions = `do $$ begin lock table adoptions in share row exclusive mode; end $$`

	insertAdoption = `
insert into adoptions (payment_intent)
select $1
 where not exists (
         select
           from ledger_events e
          where e.type like 'payment.started.v%'
            and (e.data ->> 'payment_intent') collate "C" = $1)
    on conflict (payment_intent) do nothing`

	selectOperators = `
select exists (
         select
           from adoptions
          where payment_intent = $1
            and charge_id is null)`

	updateAdoption = `
update adoptions
   set refund = $2
 where payment_intent = $1
   and refund is null`
)

// ListLost lists the lost payments that no charge has, oldest first.
func ListLost(ctx context.Context, q postgres.Querier) ([]Lost, error) {
	rows, _ := q.Query(ctx, selectUnadopted) // CollectRows returns its error
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[Lost])
	if err != nil {
		return nil, fmt.Errorf("list lost payments: %w", err)
	}
	return all, nil
}

// Adopt refunds a lost payment by refund, which is called again after a crash and
// must be idempotent, and returns false if a charge has the payment.
//
// If we die here: the payment is adopted, so no charge takes it. The operator repeats the command,
// whose refund finds what the first one did.
// Test: TestAdopt in cmd/payonce.
func Adopt(ctx context.Context, db *postgres.DB, intent string, refund func() (id string, err error)) (adopted bool, err error) {
	b := &pgx.Batch{}
	b.Queue(lockAdoptions)
	b.Queue(insertAdoption, intent)
	if err := db.Commit(ctx, b); err != nil {
		return false, fmt.Errorf("adopt payment intent %s: %w", intent, err)
	}
	if err := db.QueryRow(ctx, selectOperators, intent).Scan(&adopted); err != nil || !adopted {
		return false, err
	}
	id, err := refund()
	if err == nil {
		err = commit(ctx, db, updateAdoption, intent, id)
	}
	return true, err
}

const deleteAdoption = `
delete from adoptions
 where payment_intent = $1
   and charge_id is null
   and refund is null`

// Release takes back an operator's decision to refund a payment, and returns false if there is
// none without a refund. A charge may take the payment then.
//
// If we die here: the decision stands, or it is deleted and recorded in one commit.
// Test: TestAdopt in cmd/payonce.
func Release(ctx context.Context, db *postgres.DB, intent string) (released bool, err error) {
	b := &pgx.Batch{}
	b.Queue(deleteAdoption, intent).Exec(func(tag pgconn.CommandTag) error {
		released = tag.RowsAffected() > 0
		return nil
	})
	if err := db.Commit(ctx, b); err != nil {
		return false, fmt.Errorf("release payment intent %s: %w", intent, err)
	}
	return released, nil
}
