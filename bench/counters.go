package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/procfs"

	"github.com/payonce/payonce/internal/robustness/harness"
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

// readCounters reads them. Since version 18 PostgreSQL counts flushes with all other input and output.
func (d *deployment) readCounters(ctx context.Context) (c counters, err error) {
	flushes := "wal_sync from pg_stat_wal"
	if d.versionNumber >= 180_000 {
		flushes = "sum(fsyncs)::bigint from pg_stat_io where object = 'wal'"
	}
	return c, d.db.QueryRow(ctx, fmt.Sprintf(selectCounters, flushes)).Scan(&c.Transactions, &c.Flushes, &c.WALBytes)
}

const selectOthers = `
select count(*)
  from pg_stat_activity
 where datname = current_database()
   and backend_type = 'client backend'
   and pid <> pg_backend_pid()`

// counted reads the counters once the sessions of the programs have ended, and so have reported all their
// work.
func (d *deployment) counted(ctx context.Context) (counters, error) {
	waiting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for others := 1; others > 0; {
		if err := errors.Join(harness.Wait(waiting, 10*time.Millisecond), d.db.QueryRow(waiting, selectOthers).Scan(&others)); err != nil {
			return counters{}, fmt.Errorf("%d sessions do not end: %w", others, err)
		}
	}
	return d.readCounters(ctx)
}

// usage is the processor time of the programs and of the server, zero on a system without /proc.
type usage struct{ programs, database time.Duration }

// used reads what the programs and the server have used since they were started.
func (d *deployment) used() (u usage) {
	for _, p := range d.Processes() {
		u.programs += own(p.PID())
	}
	u.database = family(d.postmaster)
	return u
}

// tick is the unit of /proc, which is the same on all systems that have one.
const tick = time.Second / 100

// own is what a process has used, without its children.
func own(pid int) time.Duration {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	stat, _ := process.Stat()                          // zero for a process that has ended
	return time.Duration(stat.UTime+stat.STime) * tick //nolint:gosec // a few hours
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
