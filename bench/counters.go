package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/procfs"
)

// counters are what the server counts. A session reports its work once a second at most,
// and when it ends.
type counters struct {
	Transactions int64 // that were committed in the database, reads too
	Flushes      int64 // of the WAL, to the disk
	WALBytes     int64
}

func (c counters) minus(d counters) counters {
	return counters{c.Transactions - d.Transactions, c.Flushes - d.Flushes, c.WALBytes - d.WALBytes}
}

const selectCounters = `
select (select xact_commit
          from pg_stat_database
         where datname = current_database()) as transactions,
       (select %s)                           as flushes,
       (select wal_bytes::bigint
          from pg_stat_wal)                  as wal_bytes`

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
