package inbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
)

func TestProcessor_countsAnAttemptBeforeTheHandlerRuns(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	put(t, db, "m1", "k")
	start(t, processor(db, func(ctx context.Context, _ *inbox.Delivery) error {
		tx, err := db.Pool().Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `insert into merchants (merchant_id) values ('rolled-back')`); err != nil {
			return err
		}
		if r := stored(t, db, "m1"); r.Status != "running" || r.Attempts != 1 {
			t.Errorf("while its handler works the message is %+v", r)
		}
		return errors.Join(errors.New("no"), tx.Rollback(ctx))
	}))
	await.Row(t, db, `select status = 'pending' and attempts = 1 and last_error = 'no' from inbox`)
	wantEffects(t, db)
}

func TestClaim_startsWithTheOldest(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for _, id := range []string{"c", "a", "d", "b"} { // each under a key of its own
		put(t, db, id, id)
	}
	var order diary
	p := processor(db, noting(&order))
	p.Concurrency = 1
	start(t, p)
	await.Row(t, db, `select bool_and(status = 'done') from inbox`)
	order.want(t, "c a d b")
}
