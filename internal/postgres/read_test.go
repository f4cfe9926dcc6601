package postgres_test

import (
	"errors"
	"strings"
	"testing"

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
	db := testdb.OpenAt(t, testdb.Empty(t), postgres.Options{MaxConns: 1})
	for sql, state := range map[string]string{ // the SQLSTATE, if any
		`select generate_series(1, 3)`: "",
		`select 1 where false`:         "",
		`selec`:                        "42601",
		`select 1 / (2 - n) from generate_series(1, 3) n`: "22012", // the second row is refused
	} {
		released := func(read string) {
			t.Helper()
			if n := db.Pool().Stat().AcquiredConns(); n != 0 {
				t.Errorf("%s, %s: %d connections are in use", sql, read, n)
			}
		}
		if _, err := collect[int](db.Query(t.Context(), sql)); testdb.Code(err) != state {
			t.Errorf("%s ends with %v", sql, err)
		}
		released("to its end")
		if rows, err := db.Query(t.Context(), sql); err == nil {
			rows.Next()
			rows.Close()
			rows.Close()
		}
		released("closed after its first row")
		err := db.QueryRow(t.Context(), sql).Scan(new([]string))
		if err == nil || errors.Is(err, pgx.ErrNoRows) != strings.HasSuffix(sql, "where false") {
			t.Errorf("%s, as one row of a wrong type: %v", sql, err)
		}
		released("as one row of a wrong type")
	}
}
