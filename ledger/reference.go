package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Owner is a stream and whose it is.
type Owner struct {
	StreamID   string
	MerchantID string
}

// The functions that find a charge before its merchant is known are in schema.sql: they
// see the charges of all merchants and return no more than the owner.
const selectByPaymentIntent = `
select stream_id,
       merchant_id
  from charge_by_payment_intent($1, $2)`

// FindByPaymentIntent returns the stream whose payment the provider captured
// under this intent: at most one, by ledger_events_one_capture_per_reference.
// ErrNotFound before the capture, and for an intent that is not ours.
func FindByPaymentIntent(ctx context.Context, q postgres.Querier, provider, intent string) (Owner, error) {
	owner, err := find(ctx, q, selectByPaymentIntent, provider, intent)
	if err != nil {
		return owner, fmt.Errorf("find the charge of payment intent %s at %s: %w", intent, provider, err)
	}
	return owner, nil
}

const selectByID = `
select stream_id,
       merchant_id
  from charge_by_id($1)`

// Find returns a stream with its merchant. ErrNotFound if it has no event.
func Find(ctx context.Context, q postgres.Querier, id string) (Owner, error) {
	owner, err := find(ctx, q, selectByID, id)
	if err != nil {
		return owner, fmt.Errorf("find stream %s: %w", id, err)
	}
	return owner, nil
}

func find(ctx context.Context, q postgres.Querier, sql string, args ...any) (Owner, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return Owner{}, err
	}
	owner, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Owner])
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	return owner, err
}
