package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/procfs"
)

// counters are what the server counts. A session reports its work once a second at most,
// and when it ends.
type counters struct {
	Writes       int64 // transactions that wrote: ids given out
	Transactions int64 // all that were committed in the database, reads too
	Flushes      int64 // of the WAL, to the disk
	WALBytes     int64
}

func (c counters) minus(d counters) counters {
	return counters{
		Writes: c.Writes - d.Writes, Transactions: c.Transactions - d.Transactions,
		Flushes: c.Flushes - d.Flushes, WALBytes: c.WALBytes - d.WALBytes,
	}
}

const selectCounters = `
select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as writes,
       (select xact_commit
          from pg_stat_database
         where datname = current_database())                 as transactions,
       (select %s)                                           as flushes,
       (select wal_bytes::bigint
          from pg_stat_wal)                                  as wal_bytes`

// readCounters reads them. Since version 18 PostgreSQL counts flushes with all other input
// and output.
func readCounters(ctx context.Context, url string) (c counters, err error) {
	err = connected(ctx, url, func(conn *pgx.Conn) error {
		var version int
		if err := conn.QueryRow(ctx, "select current_setting('server_version_num')::int").Scan(&version); err != nil {
			return err
		}
		flushes := "wal_sync from pg_stat_wal"
		if version >= 180_000 {
			flushes = "sum(fsyncs)::bigint from pg_stat_io where object = 'wal'"
		}
		rows, _ := conn.Query(ctx, fmt.Sprintf(selectCounters, flushes)) // CollectExactlyOneRow returns its error
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

// waitAlone waits until the sessions of a database have ended, and so have reported all
// their work.
func waitAlone(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return connected(ctx, url, func(conn *pgx.Conn) error {
		for {
			var others int
			if err := conn.QueryRow(ctx, selectOthers).Scan(&others); err != nil || others == 0 {
				return err
			}
			if err := pause(ctx, 10*time.Millisecond); err != nil {
				return fmt.Errorf("%d sessions do not end: %w", others, err)
			}
		}
	})
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
		fmt.Fprintf(b.say, "\n%10s %10s %8s %8s %8s %10s\n%s\n",
			"calls", "total ms", "mean ms", "pages", "WAL B", "rows", strings.Join(lines, "\n"))
		return nil
	})
}

// usage is processor time. Where the system has no /proc it is zero.
type usage struct{ programs, database time.Duration }

func (u usage) minus(v usage) usage {
	return usage{programs: u.programs - v.programs, database: u.database - v.database}
}

// users reads what programs and the server have used since they were started.
func users(postmaster int, programs ...int) func() usage {
	return func() usage { return usage{programs: own(programs...), database: family(postmaster)} }
}

// tick is the unit of /proc, which is the same on all systems that have one.
const tick = time.Second / 100

// own is what processes have used, without their children.
func own(pids ...int) (sum time.Duration) {
	for _, pid := range pids {
		if process, err := procfs.NewProc(pid); err == nil {
			stat, _ := process.Stat()                          // zero for a process that has ended
			sum += time.Duration(stat.UTime+stat.STime) * tick //nolint:gosec // a few hours
		}
	}
	return sum
}

// family is what a process, its children, and the children that it had, have used. A
// session that ends meanwhile is counted by its parent.
func family(pid int) time.Duration {
	sum := own(pid)
	processes, _ := procfs.AllProcs()
	for _, process := range processes {
		stat, err := process.Stat()
		if err != nil {
			continue
		}
		if stat.PPID == pid {
			sum += own(stat.PID)
		} else if stat.PID == pid {
			sum += time.Duration(stat.CUTime+stat.CSTime) * tick
		}
	}
	return sum
}
