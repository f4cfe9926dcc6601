package postgres_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
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
	testrun.Long(t, "it needs a database")
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

// How reads are batched, and what callers that leave are answered, is tested in groupcommit.
func TestReads_failedReadsAreRepeatedForEachLookup(t *testing.T) {
	t.Parallel()
	refused := func(severity, code string) error {
		return &pgconn.PgError{SeverityUnlocalized: severity, Code: code}
	}
	for _, test := range []struct {
		name   string
		fails  error   // of a read with lookup 3
		failed []int   // lookups that have the error
		more   [][]int // reads after the first two
	}{
		{"none", nil, nil, nil},
		{"a refusal", refused("ERROR", "22P02"), []int{3}, [][]int{{2}, {3}, {4}}},
		{"a statement that is slow", refused("ERROR", "57014"), []int{3}, [][]int{{2}, {3}, {4}}},
		{"an answer that cannot be scanned", errors.New("planted"), []int{3}, [][]int{{2}, {3}, {4}}},
		{"no connection", io.ErrUnexpectedEOF, []int{2, 3, 4}, nil},
		{"a server that shuts down", refused("FATAL", "57P01"), []int{2, 3, 4}, nil},
		{"a standby that has not confirmed", postgres.ErrNotReplicated, []int{2, 3, 4}, nil},
		{"a lock", refused("ERROR", "55P03"), []int{2, 3, 4}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const lasts, bound = 10 * time.Second, 15 * time.Second // of a read
				reads := [][]int(nil)
				r := postgres.NewReads(1, func(ctx context.Context, lookups []int) (answers []string, err error) {
					if end, _ := ctx.Deadline(); time.Until(end) != bound {
						t.Errorf("the read of %v has %s", lookups, time.Until(end))
					}
					reads = append(reads, slices.Clone(lookups))
					<-time.After(lasts)
					for _, q := range lookups {
						answers = append(answers, strconv.Itoa(q))
					}
					if slices.Contains(lookups, 3) {
						err = test.fails
					}
					return answers, err
				})
				errs, all := make([]error, 4), sync.WaitGroup{}
				for i := range errs { // each lookup when the one before is queued
					all.Go(func() {
						text, err := r.Lookup(t.Context(), i+1)
						if err == nil && text != strconv.Itoa(i+1) {
							err = errors.New("it is answered " + text)
						}
						errs[i] = err
					})
					synctest.Wait()
				}
				all.Wait()
				for i, err := range errs {
					if slices.Contains(test.failed, i+1) != errors.Is(err, test.fails) && test.fails != nil || test.failed == nil && err != nil {
						t.Errorf("%d: %v", i+1, err)
					}
				}
				slices.SortFunc(reads[2:], slices.Compare)
				testrun.Same(t, "reads", append([][]int{{1}, {2, 3, 4}}, test.more...), reads)
			})
		})
	}
}
