package postgres_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// collect reads rows to their end.
func collect[T any](rows pgx.Rows, err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[T])
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
			if diff := cmp.Diff(test.rows, rows); diff != "" || testdb.Code(err) != test.state {
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
