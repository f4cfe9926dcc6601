package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

const selectByPaymentIntent = `
select stream_id
  from ledger_events
 where type like 'payment.captured.v%'
   and data ->> 'provider' = $1
   and data ->> 'payment_intent' = $2`

// FindByPaymentIntent returns the stream whose payment the provider captured
// under this intent: at most one, by ledger_events_one_capture_per_reference.
// ErrNotFound before the capture, and for an intent that is not ours.
func FindByPaymentIntent(ctx context.Context, q postgres.Querier, provider, intent string) (string, error) {
	var id string
	err := q.QueryRow(ctx, selectByPaymentIntent, provider, intent).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return "", fmt.Errorf("find the charge of payment intent %s at %s: %w", intent, provider, err)
	}
	return id, nil
}

const selectFirst = `
select exists (
         select
           from ledger_events
          where stream_id = $1
            and version = 1)`

// Exists tells whether a stream has an event.
func Exists(ctx context.Context, q postgres.Querier, id string) (bool, error) {
	var found bool
	if err := q.QueryRow(ctx, selectFirst, id).Scan(&found); err != nil {
		return false, fmt.Errorf("look for stream %s: %w", id, err)
	}
	return found, nil
}
