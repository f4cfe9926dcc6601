package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

const mostExpensive = `
select format('%10s %10s %8s %8s %8s %10s  %s', calls, round(total_exec_time::numeric), round(mean_exec_time::numeric, 3),
              round((shared_blks_hit + shared_blks_read)::numeric / calls, 1), round(wal_bytes / calls), rows,
              left(btrim(regexp_replace(query, '\s+', ' ', 'g')), 110))
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
		rows, _ := conn.Query(ctx, mostExpensive) // CollectRows returns its error
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("read the most expensive statements: %w", err)
		}
		_, err = fmt.Fprintf(b.say, "\n%10s %10s %8s %8s %8s %10s\n%s\n", "calls", "total ms", "mean ms", "pages", "log B", "rows", strings.Join(lines, "\n"))
		return err
	})
}
