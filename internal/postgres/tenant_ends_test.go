package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// TestANameEndsWithItsTransaction: however that ends, whoever has the connection
// next has no merchant's name.
func TestANameEndsWithItsTransaction(t *testing.T) {
	testdb.Long(t, "it waits until the server notices clients that are gone")
	t.Parallel()
	failing := func(sql string) *pgx.Batch {
		b := thing("acme", 8)
		b.Queue(sql)
		return b
	}
	for name, ends := range map[string]func(t *testing.T, db *postgres.DB) error{
		"a read that fails": func(t *testing.T, db *postgres.DB) error {
			t.Helper()
			return drain(db.Tenant("acme").Query(t.Context(), `select 1 / 0`))
		},
		"a read that fails among its rows": func(t *testing.T, db *postgres.DB) error {
			t.Helper()
			return drain(db.Tenant("acme").Query(t.Context(), `select 1 / (2 - id) from things order by id`))
		},
		"rows that nobody reads": func(t *testing.T, db *postgres.DB) error {
			t.Helper()
			rows, err := db.Tenant("acme").Query(t.Context(), `select generate_series(1, 100000)`)
			if err != nil {
				return err
			}
			rows.Next()
			rows.Close()
			return errEnded
		},
		"a client that goes away during a read": func(t *testing.T, db *postgres.DB) error {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			return drain(db.Tenant("acme").Query(ctx, `select pg_sleep(20)`))
		},
		"a read under settings that is ended by the server": func(t *testing.T, db *postgres.DB) error {
			t.Helper()
			settings := postgres.Settings{"statement_timeout": "50"}
			return drain(db.Tenant("acme").QueryWith(t.Context(), settings, `select pg_sleep(20)`))
		},
		"a commit that is refused": func(t *testing.T, db *postgres.DB) error {
			t.Helper()
			return db.Tenant("acme").Commit(t.Context(), thing("globex", 8))
		},
		"a commit that fails in its midst": func(t *testing.T, db *postgres.DB) error {
			t.Helper()
			return db.Tenant("acme").Commit(t.Context(), failing(`select 1 / 0`))
		},
		"a commit that cannot be prepared": func(t *testing.T, db *postgres.DB) error {
			t.Helper()
			return db.Tenant("acme").Commit(t.Context(), failing(`select nothing_like_this`))
		},
		"a snapshot that is left": func(t *testing.T, db *postgres.DB) error {
			t.Helper()
			tx, err := db.Tenant("acme").Snapshot(t.Context())
			if err != nil {
				return err
			}
			return errors.Join(errEnded, tx.Rollback(t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := things(t)
			if err := ends(t, db); err == nil {
				t.Error("it did not end so")
			}
			wantThings(t, db)
			wantThings(t, db.Tenant("acme"), 1, 2)
			wantThings(t, db.Tenant("globex"), 3)
		})
	}

	t.Run("in a commit of several, each has its own until the next", func(t *testing.T) {
		t.Parallel()
		db := things(t)
		joined := func(merchants ...string) *pgx.Batch {
			b := &pgx.Batch{}
			for i, merchant := range merchants {
				b.Queue(`select set_config('payonce.merchant', $1, true)`, []string{"acme", "globex"}[i])
				b.QueuedQueries = append(b.QueuedQueries, thing(merchant, 10+i).QueuedQueries...)
			}
			return b
		}
		if err := db.Commit(t.Context(), joined("acme", "acme")); code(err) != "42501" {
			t.Errorf("acme's row as globex: %v, want 42501", err)
		}
		wantThings(t, db)
		if err := db.Commit(t.Context(), joined("acme", "globex")); err != nil {
			t.Error(err)
		}
		wantThings(t, db)
		wantThings(t, db.Tenant("acme"), 1, 2, 10)
		wantThings(t, db.Tenant("globex"), 3, 11)
	})
}

var errEnded = errors.New("it was ended")

// drain reads rows to their end.
func drain(rows pgx.Rows, err error) error {
	if err != nil {
		return err
	}
	_, err = pgx.CollectRows(rows, func(pgx.CollectableRow) (struct{}, error) { return struct{}{}, nil })
	return err
}
