package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

// collect reads rows to their end.
func collect[T any](rows pgx.Rows, err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[T])
}

// reads are the ways to read, each with its error.
var reads = map[string]func(context.Context, *postgres.DB) error{
	"rows": func(ctx context.Context, db *postgres.DB) error {
		_, err := collect[int](db.Query(ctx, `select 1`))
		return err
	},
	"rows whose error is read last": func(ctx context.Context, db *postgres.DB) error {
		rows, _ := db.Query(ctx, `select 1`)
		_, err := pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	},
	"rows of a tenant": func(ctx context.Context, db *postgres.DB) error {
		_, err := collect[int](db.Tenant("acme").Query(ctx, `select 1`))
		return err
	},
	"a batch": func(ctx context.Context, db *postgres.DB) error {
		b := &pgx.Batch{}
		for range 2 {
			b.Queue(`select 1`).QueryRow(func(row pgx.Row) error { return row.Scan(new(int)) })
		}
		return db.Read(ctx, b)
	},
	"one row": func(ctx context.Context, db *postgres.DB) error {
		return db.QueryRow(ctx, `select 1`).Scan(new(int))
	},
}

func TestRead_withoutAConnectionIsErrNoConnection(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	address := testdb.Empty(t)
	for name, read := range reads {
		t.Run(name+", all connections in use until the deadline", func(t *testing.T) {
			t.Parallel()
			db := testdb.OpenAt(t, address, postgres.Options{MaxConns: 1})
			conn, err := db.Pool().Acquire(t.Context())
			testdb.Must(t, err)
			defer conn.Release()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if err := read(ctx, db); !errors.Is(err, postgres.ErrNoConnection) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the error is %v, want ErrNoConnection", err)
			}
		})

		t.Run(name+", server out of reach", func(t *testing.T) {
			t.Parallel()
			proxy := failpoint.StartCutter(t, address)
			db := testdb.OpenAt(t, proxy.URL(), postgres.Options{})
			proxy.Close()
			db.Pool().Reset()
			if err := read(t.Context(), db); !errors.Is(err, postgres.ErrNoConnection) {
				t.Errorf("the error is %v, want ErrNoConnection", err)
			}
		})

		t.Run(name+", connection lost before the answer", func(t *testing.T) {
			t.Parallel()
			for _, side := range []failpoint.Side{failpoint.Before, failpoint.After} {
				for executes := range 2 { // while it is prepared, and while it runs
					proxy := failpoint.StartCutter(t, address)
					db := testdb.OpenAt(t, proxy.URL(), postgres.Options{})
					proxy.Arm(side, executes)
					if err := read(t.Context(), db); !errors.Is(err, postgres.ErrNoConnection) || proxy.Cuts() != 1 {
						t.Errorf("cut on side %s at %d: the error is %v, want ErrNoConnection", side, executes, err)
					}
				}
			}
		})

		t.Run(name+", caller gone", func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := read(ctx, testdb.OpenAt(t, address, postgres.Options{})); !errors.Is(err, context.Canceled) || errors.Is(err, postgres.ErrNoConnection) {
				t.Errorf("the error is %v, want Canceled alone", err)
			}
		})
	}
}

func TestQuery_storesWhatItWritesUnlessItsRowsEndWithAnError(t *testing.T) {
	t.Parallel()
	db, _ := effects(t, postgres.Options{MaxConns: 1})
	for n, db := range []*postgres.DB{db, db.Tenant("acme")} {
		if _, err := collect[int](db.Query(t.Context(), `insert into effects (id) values ($1) returning id`, n+1)); err != nil {
			t.Error(err)
		}
		_, err := collect[int](db.Query(t.Context(), `insert into effects (id, twin) values (8, 1), (9, 1) returning id`))
		if groupcommit.Constraint(err) != "effects_twin_once" { // which is checked at the commit
			t.Errorf("the error is %v", err)
		}
	}
	want(t, db, `select id from effects order by id`, 1, 2)
}

// However a read ends, the next one gets the only connection of the pool.
func TestQuery_releasesItsConnection(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, sql, state string // the SQLSTATE, if any
		rows             []int
	}{
		{name: "all rows", sql: `select generate_series(1, 3)`, rows: []int{1, 2, 3}},
		{name: "no row", sql: `select 1 where false`, rows: []int{}},
		{name: "a statement that is wrong", sql: `selec`, state: "42601"},
		{name: "a later row that is refused", sql: `select 1 / (2 - n) from generate_series(1, 3) n`, state: "22012"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db := testdb.OpenAt(t, testdb.Empty(t), postgres.Options{MaxConns: 1})
			released := func() {
				t.Helper()
				if n := db.Pool().Stat().AcquiredConns(); n != 0 {
					t.Errorf("%d connections are in use", n)
				}
			}
			rows, err := collect[int](db.Query(t.Context(), test.sql))
			if diff := cmp.Diff(test.rows, rows); diff != "" || testdb.Code(err) != test.state || errors.Is(err, postgres.ErrNoConnection) {
				t.Errorf("%v, rows (-want +got):\n%s", err, diff)
			}
			released()
			// The same, closed after the first row, and read as one row of a wrong type.
			if rows, err := db.Query(t.Context(), test.sql); err == nil {
				rows.Next()
				rows.Close()
				rows.Close()
			}
			released()
			if err := db.QueryRow(t.Context(), test.sql).Scan(new([]string)); err == nil || len(test.rows) == 0 && test.rows != nil && !errors.Is(err, pgx.ErrNoRows) {
				t.Errorf("scanned, %v", err)
			}
			released()
		})
	}
}
