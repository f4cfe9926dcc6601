package groupcommit_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
)

// plain is a committer on a pool with no settings of ours, and a table.
func plain(t *testing.T) (*groupcommit.Committer, *pgxpool.Pool) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testdb.URL(t))
	testdb.Must(t, err)
	t.Cleanup(pool.Close)
	testdb.Exec(t, pool, `create table effects (id int constraint effects_once primary key, twin int, text text)`)
	return groupcommit.New(pool, groupcommit.Options{Writes: declared()}), pool
}

func TestCommitter_onAPlainPool(t *testing.T) {
	t.Parallel()
	c, pool := plain(t)
	release := c.HoldCommit()
	var units []func(context.Context) error
	for id := range 8 {
		units = append(units, func(ctx context.Context) error { return c.Commit(ctx, batch(id%7)) }) // one twice
	}
	errs := make(chan error, len(units))
	for _, unit := range units {
		go func() { errs <- unit(t.Context()) }()
	}
	await.True(t, "all are queued", func() bool { return c.Pending() == len(units) })
	release()
	refused := 0
	for range units {
		if err := <-errs; err != nil {
			refused++
			if groupcommit.Constraint(err) != "effects_once" {
				t.Errorf("the error is %v", err)
			}
		}
	}
	if ids := testdb.All[int](t, pool, `select id from effects`); refused != 1 || len(ids) != 7 {
		t.Errorf("%d refused, %d stored", refused, len(ids))
	}
	if c.Stats().Refusals == 0 {
		t.Error("no batches shared a transaction")
	}
}

func TestNew_panicsWithoutAPool(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("New has returned")
		}
	}()
	groupcommit.New(nil, groupcommit.Options{})
}
