package idempotency_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// timeouts are lock_timeout and statement_timeout.
type timeouts struct{ Lock, Statement string }

const showTimeouts = `select current_setting('lock_timeout'), current_setting('statement_timeout')`

// single is a pool of one connection, so that what a batch left on it is seen.
func single(t *testing.T, o postgres.Options) *postgres.DB {
	t.Helper()
	o.MaxConns, o.AllowPlaintext, o.AllowUnsafeDurability = 1, true, true
	db, err := postgres.Open(t.Context(), pgtest.URL(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

func TestWait(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		name string
		wait time.Duration
		want timeouts
	}{
		{"a second is a second", time.Second, timeouts{"1s", "10s"}},
		{"a part of a second is exact", 250 * time.Millisecond, timeouts{"250ms", "10s"}},
		{"the statement outlasts the wait", 9 * time.Second, timeouts{"9s", "11s"}},
		{"ten seconds are the most", time.Hour, timeouts{"10s", "12s"}},
		{"no wait is short, not endless", 0, timeouts{"1ms", "10s"}},
		{"nor is less than none", -time.Second, timeouts{"1ms", "10s"}},
		{"nor what rounds to none", time.Microsecond, timeouts{"1ms", "10s"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db := single(t, postgres.Options{LockTimeout: 7 * time.Second, StatementTimeout: 8 * time.Second})
			var during, after timeouts
			b := &pgx.Batch{}
			idempotency.Wait(b, test.wait)
			b.Queue(showTimeouts).QueryRow(func(row pgx.Row) error { return row.Scan(&during.Lock, &during.Statement) })
			if err := db.Commit(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			if err := db.QueryRow(t.Context(), showTimeouts).Scan(&after.Lock, &after.Statement); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]timeouts{test.want, {"7s", "8s"}}, []timeouts{during, after}); diff != "" {
				t.Errorf("during and after the batch (-want +got):\n%s", diff)
			}
		})
	}

	t.Run("a refused batch leaves nothing of it either", func(t *testing.T) {
		t.Parallel()
		db := single(t, postgres.Options{LockTimeout: 7 * time.Second, StatementTimeout: 8 * time.Second})
		if err := claim(t, db, theKey(), theAnswer(), inAnHour()); err != nil {
			t.Fatal(err)
		}
		if err := claimWaiting(t, db, time.Second); !idempotency.IsTaken(err) {
			t.Errorf("the error is %v, want a taken key", err)
		}
		var after timeouts
		if err := db.QueryRow(t.Context(), showTimeouts).Scan(&after.Lock, &after.Statement); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(timeouts{"7s", "8s"}, after); diff != "" {
			t.Errorf("after the batch (-want +got):\n%s", diff)
		}
	})

	t.Run("it is shorter than the pool's lock time-out where one asks for that", func(t *testing.T) {
		t.Parallel()
		db := open(t, pgtest.URL(t), postgres.Options{LockTimeout: time.Hour, StatementTimeout: time.Minute})
		underWay(t, db)
		if err := claimWaiting(t, db, 50*time.Millisecond); !postgres.IsLockTimeout(err) {
			t.Errorf("the error is %v, want a lock time-out", err)
		}
	})

	t.Run("and longer, until the rival is done", func(t *testing.T) {
		t.Parallel()
		url := pgtest.URL(t)
		db, err := postgres.Open(t.Context(), url, postgres.Options{
			LockTimeout: time.Millisecond, StatementTimeout: 5 * time.Second, AllowPlaintext: true, AllowUnsafeDurability: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(db.Close)
		rival := underWay(t, db)
		committed := make(chan error, 1)
		go func() { committed <- claimWaiting(t, db, idempotency.MaxWait) }()
		await.Blocked(t, db, 1)
		if err := rival.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-committed; !idempotency.IsTaken(err) {
			t.Errorf("the error is %v, want a taken key", err)
		}
	})
}

func claimWaiting(t *testing.T, db *postgres.DB, atMost time.Duration) error {
	t.Helper()
	b := &pgx.Batch{}
	idempotency.Wait(b, atMost)
	idempotency.Claim(b, theKey(), theRequest(), theAnswer(), inAnHour())
	return db.Commit(t.Context(), b)
}
