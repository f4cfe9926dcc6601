package idempotency_test

import (
	"errors"
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

func wantExpired(t *testing.T, db *postgres.DB, limit, want int) {
	t.Helper()
	if got, err := idempotency.ExpireKeys(t.Context(), db, limit); err != nil || got != want {
		t.Errorf("%d expired, want %d: %v", got, want, err)
	}
}

// claimExpired commits n keys that expired, the oldest first, a minute ago.
func claimExpired(t *testing.T, db *postgres.DB, n int) {
	t.Helper()
	first := fromNow(t, db, -time.Minute)
	b := &pgx.Batch{}
	for i := range n {
		idempotency.Claim(b, keyOf(fmt.Sprint("old", i)), theRequest(), theAnswer(), first.Add(time.Duration(i)*time.Millisecond))
	}
	testdb.Must(t, db.Commit(t.Context(), b))
}

// row is a key as it lies there, as text.
func row(t *testing.T, q postgres.Querier, value string) map[string]any {
	t.Helper()
	rows, err := q.Query(t.Context(), `select * from idempotency_keys where key = $1`, value)
	testdb.Must(t, err)
	row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToMap)
	testdb.Must(t, err)
	return row
}

// expireOpen expires keys in a transaction that stays open.
func expireOpen(t *testing.T, db *postgres.DB, limit, want int) pgx.Tx {
	t.Helper()
	tx := testdb.Begin(t, db.Pool(), `select 1`)
	if n, err := idempotency.ExpireKeys(t.Context(), tx, limit); n != want || err != nil {
		t.Fatalf("%d expired, want %d: %v", n, want, err)
	}
	return tx
}

func TestExpireKeys(t *testing.T) {
	t.Parallel()

	t.Run("an expired key loses answer and request, and keeps the rest", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		claimExpired(t, db, 1)
		want := row(t, db, "old0")
		want["body"], want["request"], want["headers"] = nil, nil, map[string]any{"Location": []any{"/v1/charges/ch_1"}}
		wantExpired(t, db, 10, 1)
		testrun.Same(t, "row", want, row(t, db, "old0"))
	})

	t.Run("an expired key stays taken", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		claimExpired(t, db, 1)
		wantExpired(t, db, 10, 1)
		if err := claim(t, db, keyOf("old0"), inAnHour()); groupcommit.Constraint(err) != "idempotency_keys_once" {
			t.Errorf("the error is %v, want a taken key", err)
		}
		wantEffects(t, db, 0)
	})

	t.Run("the oldest keys go first, up to the limit, each once", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		claimExpired(t, db, 5)
		wantExpired(t, db, 2, 2)
		for i := range 5 {
			record := readKey(t, db, keyOf(fmt.Sprint("old", i)))
			if kept := len(record.Body) > 0; kept != (i >= 2) || !record.Expired {
				t.Errorf("key %d: kept %v, expired %v", i, kept, record.Expired)
			}
		}
		wantExpired(t, db, 2, 2)
		wantExpired(t, db, 2, 1)
		wantExpired(t, db, 2, 0)
	})

	t.Run("rows of a dead process are expired by the next", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		claimExpired(t, db, 3)
		dead := expireOpen(t, db, 2, 2)
		wantExpired(t, db, 10, 1)
		testdb.Must(t, dead.Rollback(t.Context()))
		wantExpired(t, db, 10, 2)
	})

	t.Run("a tombstone is expired even if the clock steps back", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		claimExpired(t, db, 1)
		wantExpired(t, db, 10, 1)
		// As if the server's clock had been set back by an hour and a half.
		b := &pgx.Batch{}
		b.Queue(`update idempotency_keys set expires_at = expires_at + interval '90 minutes'`)
		testdb.Must(t, db.Commit(t.Context(), b))
		record := readKey(t, db, keyOf("old0"))
		if _, err := record.Replay(theRequest()); !errors.Is(err, idempotency.ErrExpired) {
			t.Errorf("the error is %v, want %v", err, idempotency.ErrExpired)
		}
	})

	t.Run("it reads no more rows as tombstones grow, nor by an old plan", func(t *testing.T) {
		t.Parallel()
		db := testdb.Open(t)
		tx := expireOpen(t, db, 50, 0)
		for range 10 { // a plan is kept
			if n, err := idempotency.ExpireKeys(t.Context(), tx, 50); n != 0 || err != nil {
				t.Errorf("%d expired: %v", n, err)
			}
		}
		tombstones(t, db, 20000)
		claimExpired(t, db, 100)
		if n, err := idempotency.ExpireKeys(t.Context(), tx, 50); n != 50 || err != nil {
			t.Errorf("%d expired: %v", n, err)
		}
		wantRead(t, tx, 200)
	})
}

func tombstones(t *testing.T, db *postgres.DB, n int) {
	t.Helper()
	b := &pgx.Batch{}
	b.Queue(`
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, expires_at)
select 'acme', 'POST /v1/charges', 'tomb' || n, '', 202, now() - interval '1 day'
  from generate_series(1, $1::int) n`, n)
	testdb.Must(t, db.Commit(t.Context(), b))
}

// wantRead checks how many rows the transaction read of idempotency_keys.
func wantRead(t *testing.T, tx pgx.Tx, atMost int64) {
	t.Helper()
	var read int64
	err := tx.QueryRow(t.Context(), `
select seq_tup_read + coalesce(idx_tup_fetch, 0)
  from pg_stat_xact_user_tables
 where relname = 'idempotency_keys'`).Scan(&read)
	if err != nil || read > atMost {
		t.Errorf("%d rows were read, want at most %d: %v", read, atMost, err)
	}
}
