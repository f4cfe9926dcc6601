package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

const dearest = `
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

// tellStatements prints what took the server's time, where that was wanted.
func (s *stage) tellStatements(ctx context.Context, url string) error {
	if !s.server.statements {
		return nil
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, dearest)
	if err != nil {
		return fmt.Errorf("read the dearest statements: %w", err)
	}
	var calls, count int64
	var total, mean, pages, log float64
	var query string
	fmt.Fprintf(s.say, "\n%10s %10s %8s %8s %8s %10s\n", "calls", "total ms", "mean ms", "pages", "log B", "rows")
	_, err = pgx.ForEachRow(rows, []any{&calls, &total, &mean, &pages, &log, &count, &query}, func() error {
		query = strings.Join(strings.Fields(query), " ")
		_, err := fmt.Fprintf(s.say, "%10d %10.0f %8.3f %8.1f %8.0f %10d  %.110s\n", calls, total, mean, pages, log, count, query)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the dearest statements: %w", err)
	}
	return nil
}
