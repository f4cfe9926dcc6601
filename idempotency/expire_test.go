package idempotency_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func wantExpired(t *testing.T, q groupcommit.Querier, limit, want int) {
	t.Helper()
	if got, err := idempotency.ExpireKeys(t.Context(), q, limit); err != nil || got != want {
		t.Errorf("%d expired, want %d: %v", got, want, err)
	}
}

// claimExpired commits n keys that expired, the oldest first, a minute ago.
func claimExpired(t *testing.T, db *postgres.DB, n int) {
	t.Helper()
	first := testdb.One[time.Time](t, db, `select clock_timestamp() - interval '1 minute'`)
	b := &pgx.Batch{}
	for i := range n {
		idempotency.Claim(b, keyOf(fmt.Sprint("old", i)), theRequest(), theAnswer(), first.Add(time.Duration(i)*time.Millisecond))
	}
	testdb.Must(t, db.Commit(t.Context(), b))
}

// kept are the keys that have their answer yet.
func kept(t *testing.T, db *postgres.DB) []string {
	t.Helper()
	return testdb.One[[]string](t, db, `select coalesce(array_agg(key order by key), '{}') from idempotency_keys where body is not null`)
}

// row is a key as it lies there.
func row(t *testing.T, q postgres.Querier) map[string]any {
	t.Helper()
	rows, err := q.Query(t.Context(), `select * from idempotency_keys where key = 'old0'`)
	testdb.Must(t, err)
	row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToMap)
	testdb.Must(t, err)
	return row
}

func TestExpireKeys(t *testing.T) {
	t.Parallel()

	t.Run("the oldest keys lose answer and request, up to the limit, each once", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		claimExpired(t, db, 5)
		want := row(t, db)
		want["body"], want["request"], want["headers"] = nil, nil, map[string]any{"Location": []any{"/v1/charges/ch_1"}}
		wantExpired(t, db, 2, 2)
		testrun.Same(t, "row", want, row(t, db))
		testrun.Same(t, "kept", []string{"old2", "old3", "old4"}, kept(t, db))
		wantExpired(t, db, 2, 2)
		wantExpired(t, db, 2, 1)
		wantExpired(t, db, 2, 0)
	})

	t.Run("rows of a dead process are expired by the next", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		claimExpired(t, db, 3)
		dead := testdb.Begin(t, db.Pool(), `select 1`)
		wantExpired(t, dead, 2, 2)
		wantExpired(t, db, 10, 1)
		testdb.Must(t, dead.Rollback(t.Context()))
		wantExpired(t, db, 10, 2)
	})

	t.Run("it reads no more rows as tombstones grow, nor by an old plan", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		tx := testdb.Begin(t, db.Pool(), `select 1`)
		for range 11 { // a plan is kept
			wantExpired(t, tx, 50, 0)
		}
		testdb.Exec(t, db.Pool(), `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, expires_at)
select 'acme', 'POST /v1/charges', 'tomb' || n, '', 202, now() - interval '1 day'
  from generate_series(1, 20000) n`)
		claimExpired(t, db, 100)
		wantExpired(t, tx, 50, 50)
		var read int64
		err := tx.QueryRow(t.Context(), `
select seq_tup_read + coalesce(idx_tup_fetch, 0)
  from pg_stat_xact_user_tables
 where relname = 'idempotency_keys'`).Scan(&read)
		if err != nil || read > 200 {
			t.Errorf("%d rows were read: %v", read, err)
		}
	})
}
