package httpapi_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// open opens a pool for an API. It is closed when the test ends.
func open(t *testing.T, url string, o postgres.Options) *postgres.DB {
	t.Helper()
	o.AllowPlaintext, o.AllowUnsafeDurability = true, true
	db, err := postgres.Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// openWith opens a pool with these options on an empty database.
func openWith(t *testing.T, o postgres.Options) *postgres.DB {
	t.Helper()
	return open(t, addressOf(testdb.Reused(t)), o)
}

// addressOf is the connection string of a database.
func addressOf(db *postgres.DB) string { return db.Pool().Config().ConnString() }

// begin opens a transaction, which is rolled back at the latest when the test
// ends.
func begin(t *testing.T, db *postgres.DB) pgx.Tx {
	t.Helper()
	tx, err := db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	return tx
}

func exec(t *testing.T, tx interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, sql string, args ...any,
) {
	t.Helper()
	r, err := tx.Query(t.Context(), sql, args...)
	if err == nil {
		r.Close()
		err = r.Err()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// hold takes acme's key in a transaction that does not end: what a request looks
// like while it is committed.
func hold(t *testing.T, db *postgres.DB, key string) pgx.Tx {
	t.Helper()
	tx := begin(t, db)
	exec(t, tx, `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, content_type, body, expires_at)
values ('acme', 'POST /v1/charges', $1, 'another', 202, 'application/json', '{}', clock_timestamp() + interval '1 hour')`, key)
	return tx
}

func wantPending(t *testing.T, a answer) {
	t.Helper()
	if a.status != http.StatusAccepted || a.body != "{}" || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("status %d, %s: %s", a.status, a.header.Get("Content-Type"), a.body)
	}
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
	}
	for _, name := range []string{"Location", "Idempotent-Replayed", "Idempotency-Expires"} {
		if a.header.Get(name) != "" {
			t.Errorf("%s is %q", name, a.header.Get(name))
		}
	}
}

// waiting waits until exactly n statements wait for a lock.
func waiting(t *testing.T, db *postgres.DB, n int) {
	t.Helper()
	waitingBetween(t, db, n, n)
}

// waitingBetween waits until least to most statements wait for a lock.
func waitingBetween(t *testing.T, db *postgres.DB, least, most int) {
	t.Helper()
	await.Row(t, db, `
select count(*) between $1 and $2
  from pg_stat_activity
 where datname = current_database()
   and wait_event_type = 'Lock'`, least, most)
}

// waitingFor waits until n statements have waited for a lock for that long, by
// the database's clock.
func waitingFor(t *testing.T, db *postgres.DB, n int, atLeast time.Duration) {
	t.Helper()
	await.Row(t, db, `
select count(*) = $1
  from pg_stat_activity
 where datname = current_database()
   and wait_event_type = 'Lock'
   and clock_timestamp() - state_change >= $2`, n, atLeast)
}

// becomesReady waits until the API says that it is ready: on a busy machine it
// may give a look at the database up.
func (w *world) becomesReady(t *testing.T) {
	t.Helper()
	await.Progress(t, "GET /readyz answers 200", func() (seen string, done bool) {
		a := w.send(t, get("/readyz"))
		return a.body, a.status == http.StatusOK
	})
}
