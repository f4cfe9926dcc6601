package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

// reads are the ways to read, each with its error.
func reads() map[string]func(context.Context, *postgres.DB) error {
	return map[string]func(context.Context, *postgres.DB) error{
		"of rows": func(ctx context.Context, db *postgres.DB) error {
			rows, err := db.Query(ctx, `select 1`)
			for rows.Next() {
				err = errors.ErrUnsupported // there is one only with a connection
			}
			return errors.Join(err, rows.Err())
		},
		"of rows that looks at the error at last": func(ctx context.Context, db *postgres.DB) error {
			rows, _ := db.Query(ctx, `select 1`)
			_, err := pgx.CollectRows(rows, pgx.RowTo[int])
			return err
		},
		"under settings": func(ctx context.Context, db *postgres.DB) error {
			rows, err := db.QueryWith(ctx, nil, `select 1`)
			for rows.Next() {
				err = errors.ErrUnsupported
			}
			return errors.Join(err, rows.Err())
		},
		"of several in one round trip": func(ctx context.Context, db *postgres.DB) error {
			read := postgres.Read{SQL: `select 1`, Rows: func(rows pgx.Rows) error {
				_, err := pgx.CollectRows(rows, pgx.RowTo[int])
				return err
			}}
			return db.Read(ctx, postgres.As("acme"), read, read)
		},
		"of one row": func(ctx context.Context, db *postgres.DB) error {
			var one int
			return db.QueryRow(ctx, `select 1`).Scan(&one)
		},
	}
}

func TestAReadWithoutAConnectionSaysSo(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	address := testdb.Empty(t)
	for name, read := range reads() {
		t.Run(name+", when all are in use until the end of the context", func(t *testing.T) {
			t.Parallel()
			db := open(t, address, postgres.Options{MaxConns: 1})
			conn, err := db.Pool().Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if err := read(ctx, db); !errors.Is(err, postgres.ErrNoConnection) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the error is %v, want ErrNoConnection", err)
			}
		})

		t.Run(name+", when nobody listens", func(t *testing.T) {
			t.Parallel()
			proxy := failpoint.StartCutter(t, address)
			db := open(t, proxy.URL(), postgres.Options{})
			proxy.Close()
			db.Pool().Reset()
			if err := read(t.Context(), db); !errors.Is(err, postgres.ErrNoConnection) {
				t.Errorf("the error is %v, want ErrNoConnection", err)
			}
		})
	}

	for name, read := range reads() {
		t.Run(name+", when it was lost before the answer", func(t *testing.T) {
			t.Parallel()
			for _, side := range []failpoint.Side{failpoint.Before, failpoint.After} {
				for executes := range 2 { // while it is prepared, and while it runs
					proxy := failpoint.StartCutter(t, address)
					db := open(t, proxy.URL(), postgres.Options{})
					proxy.Arm(side, executes)
					if err := read(t.Context(), db); !errors.Is(err, postgres.ErrNoConnection) || proxy.Cuts() != 1 {
						t.Errorf("cut on side %s at %d: the error is %v, want ErrNoConnection", side, executes, err)
					}
				}
			}
		})
	}

	t.Run("but not who hung up", func(t *testing.T) {
		t.Parallel()
		db := open(t, address, postgres.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for name, read := range reads() {
			if err := read(ctx, db); !errors.Is(err, context.Canceled) || errors.Is(err, postgres.ErrNoConnection) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})

	t.Run("nor a statement that was refused", func(t *testing.T) {
		t.Parallel()
		db := open(t, address, postgres.Options{})
		var one int
		if err := db.QueryRow(t.Context(), `select 1 / 0`).Scan(&one); err == nil || errors.Is(err, postgres.ErrNoConnection) {
			t.Errorf("the error is %v", err)
		}
	})
}

func one(t *testing.T, db *postgres.DB, s postgres.Settings, sql string, args ...any) int {
	t.Helper()
	rows, err := db.QueryWith(t.Context(), s, sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	n, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestSettingsEndWithTheirStatement(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db, _ := effects(t, postgres.Options{MaxConns: 1})
	const costs = `select current_setting('cpu_tuple_cost')::numeric * 1000`
	usual := one(t, db, nil, costs+`::int`)
	if got := one(t, db, postgres.Settings{"cpu_tuple_cost": "7", "jit": "off"}, costs+`::int`); got != 7000 {
		t.Errorf("the setting was %d", got)
	}
	if got := one(t, db, nil, costs+`::int`); got != usual {
		t.Errorf("afterwards it is %d, and was %d", got, usual)
	}
	// What was written is there, or is not if the rows end with an error.
	one(t, db, nil, `insert into effects (id) values ($1) returning id`, 1)
	rows, err := db.QueryWith(t.Context(), nil, `insert into effects (id, twin) values (2, 1), (3, 1) returning id`)
	if err == nil {
		_, err = pgx.CollectRows(rows, pgx.RowTo[int]) // the twins are compared at the commit
	}
	if postgres.Constraint(err) != "effects_twin_once" {
		t.Errorf("the error is %v", err)
	}
	wantStored(t, db, 1)
}

// However a read ends, the next one has the only connection of the pool.
func TestAReadGivesItsConnectionBack(t *testing.T) {
	t.Parallel()
	query := func(t *testing.T, db *postgres.DB, sql string) pgx.Rows {
		t.Helper()
		rows, err := db.Query(t.Context(), sql)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	for name, read := range map[string]func(*testing.T, *postgres.DB){
		"when its row was scanned": func(t *testing.T, db *postgres.DB) {
			t.Helper()
			var one int
			if err := db.QueryRow(t.Context(), `select 1`).Scan(&one); err != nil {
				t.Error(err)
			}
		},
		"when there was no row": func(t *testing.T, db *postgres.DB) {
			t.Helper()
			var one int
			if err := db.QueryRow(t.Context(), `select 1 where false`).Scan(&one); !errors.Is(err, pgx.ErrNoRows) {
				t.Error(err)
			}
		},
		"when the statement is wrong": func(t *testing.T, db *postgres.DB) {
			t.Helper()
			rows, err := db.Query(t.Context(), `selec`)
			if rows.Close(); err == nil {
				t.Error("it was read")
			}
		},
		"when all rows were seen": func(t *testing.T, db *postgres.DB) {
			t.Helper()
			got, err := pgx.CollectRows(query(t, db, `select generate_series(1, 3)`), pgx.RowTo[int])
			if diff := cmp.Diff([]int{1, 2, 3}, got); diff != "" || err != nil {
				t.Errorf("%v, rows (-want +got):\n%s", err, diff)
			}
		},
		"when it was closed before": func(t *testing.T, db *postgres.DB) {
			t.Helper()
			rows := query(t, db, `select generate_series(1, 3)`)
			rows.Next()
			rows.Close()
			rows.Close()
		},
		"when a row could not be scanned": func(t *testing.T, db *postgres.DB) {
			t.Helper()
			rows := query(t, db, `select 'one'`)
			rows.Next()
			var one int
			if err := rows.Scan(&one); err == nil {
				t.Error("it was scanned")
			}
		},
		"under settings, when all rows were seen": func(t *testing.T, db *postgres.DB) {
			t.Helper()
			if got := one(t, db, postgres.Settings{"enable_sort": "off"}, `select 1`); got != 1 {
				t.Errorf("it read %d", got)
			}
		},
		"under settings, when it was closed before": func(t *testing.T, db *postgres.DB) {
			t.Helper()
			rows, err := db.QueryWith(t.Context(), nil, `select generate_series(1, 3)`)
			if err != nil {
				t.Fatal(err)
			}
			rows.Next()
			rows.Close()
		},
		"under settings, when one of them is none": func(t *testing.T, db *postgres.DB) {
			t.Helper()
			rows, err := db.QueryWith(t.Context(), postgres.Settings{"enable_nothing": "off"}, `select 1`)
			if rows.Close(); err == nil || errors.Is(err, postgres.ErrNoConnection) {
				t.Errorf("the error is %v", err)
			}
		},
		"when the server refused a later row": func(t *testing.T, db *postgres.DB) {
			t.Helper()
			if _, err := pgx.CollectRows(query(t, db, `select 1 / (2 - n) from generate_series(1, 3) n`), pgx.RowTo[int]); err == nil {
				t.Error("it was read")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, testdb.Empty(t), postgres.Options{MaxConns: 1})
			read(t, db)
			if in := db.Pool().Stat().AcquiredConns(); in != 0 {
				t.Errorf("%d connections are in use", in)
			}
		})
	}
}
