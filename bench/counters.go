package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// counters are what the server counts. They are complete only when the sessions that
// did the work have ended: a session reports its work once a second at most, and when
// it ends.
type counters struct {
	Writes       int64 // transactions that wrote: ids given out
	Transactions int64 // all that were committed in the database, reads too
	Flushes      int64 // of the WAL, to the disk
	LogBytes     int64
	Statements   int64 // 0 without pg_stat_statements
}

func (c counters) minus(d counters) counters {
	return counters{
		Writes: c.Writes - d.Writes, Transactions: c.Transactions - d.Transactions,
		Flushes: c.Flushes - d.Flushes, LogBytes: c.LogBytes - d.LogBytes, Statements: c.Statements - d.Statements,
	}
}

// selectServerHas says where the server counts flushes: since version 18 with all other input
// and output.
const selectServerHas = `
select case
         when current_setting('server_version_num')::int < 180000 then 'wal_sync from pg_stat_wal'
         else 'sum(fsyncs)::bigint from pg_stat_io where object = ''wal'''
       end,
       case
         when to_regclass('pg_stat_statements') is null then '0::bigint'
         else 'coalesce(sum(calls), 0)::bigint from pg_stat_statements join pg_database d on d.oid = dbid
                where datname = current_database()'
       end`

const selectCounters = `
select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as writes,
       (select xact_commit
          from pg_stat_database
         where datname = current_database())                 as transactions,
       (select %s)                                           as flushes,
       (select wal_bytes::bigint
          from pg_stat_wal)                                  as log_bytes,
       (select %s)                                           as statements`

func readCounters(ctx context.Context, url string) (c counters, err error) {
	err = connected(ctx, url, func(conn *pgx.Conn) error {
		var flushes, statements string
		if err := conn.QueryRow(ctx, selectServerHas).Scan(&flushes, &statements); err != nil {
			return err
		}
		if err := waitAlone(ctx, conn); err != nil {
			return err
		}
		rows, _ := conn.Query(ctx, fmt.Sprintf(selectCounters, flushes, statements)) // CollectExactlyOneRow returns its error
		c, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[counters])
		return err
	})
	return c, err
}

const selectOthers = `
select count(*)
  from pg_stat_activity
 where datname = current_database()
   and backend_type = 'client backend'
   and pid <> pg_backend_pid()`

// waitAlone waits until the other sessions of the database have ended.
func waitAlone(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		var others int
		if err := conn.QueryRow(ctx, selectOthers).Scan(&others); err != nil || others == 0 {
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%d sessions of %s do not end: %w", others, conn.Config().Database, err)
		}
	}
}

// counted runs a measurement whose sessions end with it, and returns what the server
// counted meanwhile.
func counted(ctx context.Context, url string, measure func() (window, error)) (w window, c counters, err error) {
	before, err := readCounters(ctx, url)
	if err != nil {
		return w, c, err
	}
	if w, err = measure(); err != nil {
		return w, c, err
	}
	after, err := readCounters(ctx, url)
	return w, after.minus(before), err
}

const mostExpensive = `
select format('%10s %10s %8s %8s %8s %10s  %s', calls, round(total_exec_time::numeric), round(mean_exec_time::numeric, 3),
              round((shared_blks_hit + shared_blks_read)::numeric / calls, 1), round(wal_bytes / calls), rows,
              left(btrim(regexp_replace(query, '\s+', ' ', 'g')), 110))
  from pg_stat_statements
  join pg_database d
    on d.oid = dbid
 where datname = current_database()
 order by total_exec_time desc
 limit 25`

// printStatements prints what took the server's time, with --statements.
func (b *bench) printStatements(ctx context.Context, url string) error {
	if !b.Statements {
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
