package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// counters are what the server counts. They are complete only when the sessions that
// did the work have ended: a session reports its work once a second at most, and when
// it ends.
type counters struct {
	Writes       int64 // transactions that wrote: ids given out
	Transactions int64 // all that were committed in the database, reads too
	Flushes      int64 // of the log, to the disk
	LogBytes     int64
	Statements   int64 // 0 without pg_stat_statements
}

func (c counters) minus(d counters) counters {
	return counters{
		Writes: c.Writes - d.Writes, Transactions: c.Transactions - d.Transactions,
		Flushes: c.Flushes - d.Flushes, LogBytes: c.LogBytes - d.LogBytes, Statements: c.Statements - d.Statements,
	}
}

const selectCounters = `
select pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       (select xact_commit
          from pg_stat_database
         where datname = current_database()),
       (select %s),
       (select wal_bytes::bigint
          from pg_stat_wal),
       (select %s)`

// Since version 18 the flushes are counted with all other input and output.
const (
	flushesBefore18 = "wal_sync from pg_stat_wal"
	flushesSince18  = "sum(fsyncs)::bigint from pg_stat_io where object = 'wal'"
	statementCalls  = `coalesce(sum(calls), 0)::bigint
          from pg_stat_statements
         where dbid = (select oid
                         from pg_database
                        where datname = current_database())`
)

const selectServerHas = `
select current_setting('server_version_num')::int >= 180000,
       to_regclass('pg_stat_statements') is not null`

func readCounters(ctx context.Context, url string) (c counters, err error) {
	err = connected(ctx, url, func(conn *pgx.Conn) error {
		var since18, counted bool
		if err := conn.QueryRow(ctx, selectServerHas).Scan(&since18, &counted); err != nil {
			return err
		}
		if err := waitAlone(ctx, conn); err != nil {
			return err
		}
		flushes, calls := flushesBefore18, "0::bigint"
		if since18 {
			flushes = flushesSince18
		}
		if counted {
			calls = statementCalls
		}
		return conn.QueryRow(ctx, fmt.Sprintf(selectCounters, flushes, calls)).
			Scan(&c.Writes, &c.Transactions, &c.Flushes, &c.LogBytes, &c.Statements)
	})
	if err != nil {
		return c, fmt.Errorf("read the server's counters: %w", err)
	}
	return c, nil
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
