package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Owner is a stream and its merchant.
type Owner struct {
	StreamID   string
	MerchantID string
}

const selectByID = `
-- ledger.selectByID
select stream_id,
       merchant_id
  from ledger_events
 where stream_id = $1
   and version = 1`

// Find returns the owner of a stream. ErrNotFound if the stream has no event.
func Find(ctx context.Context, q postgres.Querier, id string) (Owner, error) {
	return find(ctx, q, "charge "+id, selectByID, id)
}

// charge_by_payment_intent, in schema.sql, also finds a charge before its merchant is known.
const selectByPaymentIntent = `
-- ledger.selectByPaymentIntent
select stream_id,
       merchant_id
  from charge_by_payment_intent($1, $2)`

// FindByPaymentIntent returns the owner of the charge whose payment was started under a
// payment intent, also before its capture. ErrNotFound if no charge has it.
func FindByPaymentIntent(ctx context.Context, q postgres.Querier, provider, intent string) (Owner, error) {
	return find(ctx, q, "the charge of a payment intent", selectByPaymentIntent, provider, intent)
}

const selectHolder = `
-- ledger.selectHolder
select stream_id,
       merchant_id
  from held_orders
 where merchant_id = $1
   and order_id = $2`

// LoadHolder reads the charge that holds an order. ErrNotFound if none does; the answer may be
// old by the time of a commit, which held_orders_one_charge decides.
func LoadHolder(ctx context.Context, q postgres.Querier, merchant, order string) (Stream, error) {
	holder, err := find(ctx, q, "the charge that holds an order", selectHolder, merchant, order)
	if err != nil {
		return Stream{}, err
	}
	return Load(ctx, q, holder.StreamID)
}

func find(ctx context.Context, q postgres.Querier, what, sql string, args ...any) (Owner, error) {
	rows, _ := q.Query(ctx, sql, args...) // CollectRows returns its error
	owners, err := pgx.CollectRows(rows, pgx.RowToStructByName[Owner])
	switch {
	case err != nil:
		return Owner{}, fmt.Errorf("find %s: %w", what, err)
	case len(owners) == 0:
		return Owner{}, fmt.Errorf("find %s: %w", what, ErrNotFound)
	}
	return owners[0], nil
}
