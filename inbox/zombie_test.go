package inbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// A holder that is stopped inside an open transaction holds locks there. The
// server ends such a session, so that the heir gets them, and nothing of the
// zombie's is left when it wakes up.
func TestAZombieInsideATransactionLosesItsLocksAndItsCommit(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	url := testdb.URL(t)
	db := open(t, url, postgres.Options{})
	sleepy := open(t, url, postgres.Options{})
	put(t, db, "m1", "k")
	write(t, db, `insert into merchants (merchant_id) values ('locked')`)
	const change = `update merchants set fee_fixed = jsonb_build_object('by', $1::text) where merchant_id = 'locked'`

	stopped, resume, woken := make(chan struct{}), make(chan struct{}), make(chan error, 3)
	start(t, processor(sleepy, func(ctx context.Context, d *inbox.Delivery) error {
		tx, err := sleepy.Pool().Begin(ctx)
		if err == nil {
			_, err = tx.Exec(ctx, change, "of-the-zombie")
		}
		if err == nil { // only now, since a busy machine idles too
			_, err = tx.Exec(ctx, `set local idle_in_transaction_session_timeout = '100ms'`)
		}
		if err != nil {
			t.Error(err)
			return err
		}
		close(stopped)
		<-resume
		_, err = tx.Exec(ctx, change, "of-the-zombie, later")
		woken <- err
		woken <- tx.Commit(ctx)
		b := &pgx.Batch{} // and once more, on a fresh connection
		b.Queue(change, "of-the-zombie, afresh")
		err = d.Commit(ctx, sleepy, b)
		woken <- err
		return err
	}))
	await.Receive(t, "the first holder", stopped)
	silence(t, db)
	heir := processor(db, func(ctx context.Context, d *inbox.Delivery) error {
		b := &pgx.Batch{}
		b.Queue(change, "of-the-heir") // waits for the zombie's lock
		return d.Commit(ctx, db, b)
	})
	start(t, heir)
	await.Row(t, db, `select status = 'done' and fence = 2 from inbox`)
	close(resume)
	for _, what := range []string{"statement", "commit"} {
		if err := await.Receive(t, "the zombie's "+what, woken); err == nil {
			t.Errorf("the zombie's %s passed in a session that was ended", what)
		}
	}
	if err := await.Receive(t, "the zombie's last commit", woken); !inbox.IsLost(err) {
		t.Errorf("the zombie's last commit ended with %v, want a lost lease", err)
	}
	var value string
	if err := db.QueryRow(t.Context(), `select fee_fixed ->> 'by' from merchants`).Scan(&value); err != nil || value != "of-the-heir" {
		t.Errorf("the row has %q: %v", value, err)
	}
}
