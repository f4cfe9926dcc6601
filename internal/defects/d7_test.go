package defects_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// D7: one document's example of a good key is order, warehouse and timestamp.
// Two systems that trigger the same shipment do so at two moments, and so does
// one system that tries again: the keys differ. Another of the documents lists
// just this as an anti-pattern.

const processedOfD7 = `
create table processed_messages (
  message_id text primary key
);
create table shipments (
  order_id text not null
)`

// shipOfD7 ships once per key.
func shipOfD7(ctx context.Context, db *pgxpool.Pool, order, warehouse string, at time.Time) error {
	key := fmt.Sprintf("%s/%s/%d", order, warehouse, at.Unix())
	taken, err := db.Exec(ctx, `insert into processed_messages values ($1) on conflict do nothing`, key)
	if err == nil && taken.RowsAffected() == 1 {
		_, err = db.Exec(ctx, `insert into shipments values ($1)`, order)
	}
	return err
}

func TestD7(t *testing.T) {
	t.Parallel()

	t.Run("an order that two systems trigger is shipped twice", func(t *testing.T) {
		t.Parallel()
		db := miniature(t, processedOfD7)
		noon := time.Date(2026, time.January, 1, 12, 0, 0, 0, time.UTC)
		for _, at := range []time.Time{noon, noon.Add(3 * time.Second)} {
			if err := shipOfD7(t.Context(), db, "order 1", "berlin", at); err != nil {
				t.Error(err)
			}
		}
		wantCount(t, db, "shipments", 2, `select count(*) from shipments`)
	})
}
