package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

const mostExpensive = `
select calls,
       total_exec_time,
       mean_exec_time,
       (shared_blks_hit + shared_blks_read)::float / calls,
       wal_bytes::float / calls,
       rows,
       query
  from pg_stat_statements
 where dbid = (select oid
                 from pg_database
                where datname = current_database())
 order by total_exec_time desc
 limit 25`

// printStatements prints what took the server's time, with --statements.
func (b *bench) printStatements(ctx context.Context, url string) error {
	if !b.statements {
		return nil
	}
	return connected(ctx, url, func(conn *pgx.Conn) error {
		var calls, count int64
		var total, mean, pages, log float64
		var query string
		rows, _ := conn.Query(ctx, mostExpensive) // ForEachRow returns its error
		fmt.Fprintf(b.say, "\n%10s %10s %8s %8s %8s %10s\n", "calls", "total ms", "mean ms", "pages", "log B", "rows")
		_, err := pgx.ForEachRow(rows, []any{&calls, &total, &mean, &pages, &log, &count, &query}, func() error {
			query = strings.Join(strings.Fields(query), " ")
			_, err := fmt.Fprintf(b.say, "%10d %10.0f %8.3f %8.1f %8.0f %10d  %.110s\n", calls, total, mean, pages, log, count, query)
			return err
		})
		if err != nil {
			return fmt.Errorf("read the most expensive statements: %w", err)
		}
		return nil
	})
}
