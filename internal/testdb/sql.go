package testdb

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/testrun"
)

// Must ends the test if there is an error.
func Must(tb testrun.TB, err error) {
	tb.Helper()
	testrun.Must(tb, err)
}

// Execer is a pool, a connection or a transaction.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Exec runs statements, which must succeed.
func Exec(tb testing.TB, to Execer, sql string, args ...any) {
	tb.Helper()
	_, err := to.Exec(tb.Context(), sql, args...)
	Must(tb, err)
}

// Begin opens a transaction that may rest, since a busy machine comes back late to what it
// locks, and runs a statement in it. What is open when the test ends is rolled back.
func Begin(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) pgx.Tx {
	tb.Helper()
	tx, err := pool.Begin(tb.Context())
	Must(tb, err)
	tb.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(tb.Context())) })
	Exec(tb, tx, `set local idle_in_transaction_session_timeout = 0`)
	Exec(tb, tx, sql, args...)
	return tx
}

// Warm opens so many connections of a pool, for a test of what has little time.
func Warm(tb testing.TB, pool *pgxpool.Pool, conns int) {
	tb.Helper()
	for range conns {
		c, err := pool.Acquire(tb.Context())
		Must(tb, err)
		defer c.Release() // when all are open
	}
}

// All are the values of a query with one column.
func All[T any](tb testing.TB, q groupcommit.Querier, sql string, args ...any) []T {
	tb.Helper()
	rows, err := q.Query(tb.Context(), sql, args...)
	Must(tb, err)
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	Must(tb, err)
	return values
}

// One is the value of a query with one row and one column.
func One[T any](tb testing.TB, q groupcommit.Querier, sql string, args ...any) T {
	tb.Helper()
	values := All[T](tb, q, sql, args...)
	if len(values) != 1 {
		tb.Fatalf("%s: %d rows, want one", sql, len(values))
	}
	return values[0]
}

// Rows counts the rows of every table.
func Rows(tb testing.TB, q groupcommit.Querier) map[string]int64 {
	tb.Helper()
	return One[map[string]int64](tb, q, `
select json_object_agg(relname,
         (xpath('/row/n/text()', query_to_xml(format('select count(*) as n from %I', relname), false, true, '')))[1]::text::bigint)
  from pg_class
 where relkind = 'r'
   and relnamespace = 'public'::regnamespace`)
}

// Code is the SQLSTATE of an error, "" if it has none.
func Code(err error) string {
	refusal, _ := errors.AsType[*pgconn.PgError](err)
	if refusal == nil {
		return ""
	}
	return refusal.Code
}

// Modes are the ways in which pgx runs a statement.
func Modes() []pgx.QueryExecMode {
	return []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	}
}

// PoolIn returns a pool in a mode of pgx, until the test ends.
func PoolIn(tb testing.TB, url string, mode pgx.QueryExecMode) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(url)
	Must(tb, err)
	config.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(tb.Context(), config)
	Must(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}
