package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// counters are what the server counts. They are complete only when the sessions
// that did the work have ended: a session tells what it did once a second at
// most, and when it ends.
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
          from pg_stat_wal)`

// Since version 18 the flushes are counted with all other input and output.
const (
	flushesBefore18 = "wal_sync from pg_stat_wal"
	flushesSince18  = "sum(fsyncs)::bigint from pg_stat_io where object = 'wal'"
)

func readCounters(ctx context.Context, url string) (c counters, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return c, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var version int
	if err := conn.QueryRow(ctx, "select current_setting('server_version_num')::int").Scan(&version); err != nil {
		return c, fmt.Errorf("read the server's counters: %w", err)
	}
	if err := alone(ctx, conn); err != nil {
		return c, err
	}
	flushes := flushesBefore18
	if version >= 180000 {
		flushes = flushesSince18
	}
	err = conn.QueryRow(ctx, fmt.Sprintf(selectCounters, flushes)).Scan(&c.Writes, &c.Transactions, &c.Flushes, &c.LogBytes)
	if err != nil {
		return c, fmt.Errorf("read the server's counters: %w", err)
	}
	var counted bool
	if err := conn.QueryRow(ctx, "select to_regclass('pg_stat_statements') is not null").Scan(&counted); err != nil || !counted {
		return c, err
	}
	if err := conn.QueryRow(ctx, selectStatements).Scan(&c.Statements); err != nil {
		return c, fmt.Errorf("count the statements: %w", err)
	}
	return c, nil
}

const selectStatements = `
select coalesce(sum(calls), 0)::bigint
  from pg_stat_statements
 where dbid = (select oid
                 from pg_database
                where datname = current_database())`

const selectOthers = `
select count(*)
  from pg_stat_activity
 where datname = current_database()
   and backend_type = 'client backend'
   and pid <> pg_backend_pid()`

// alone waits until the other sessions of the database have ended.
func alone(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		var others int
		if err := conn.QueryRow(ctx, selectOthers).Scan(&others); err != nil {
			return fmt.Errorf("wait for the end of %s's sessions: %w", conn.Config().Database, err)
		}
		if others == 0 {
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%d sessions of %s do not end: %w", others, conn.Config().Database, err)
		}
	}
}

// counting runs a measurement whose sessions end with it, and adds what the
// server counted meanwhile.
func counting(ctx context.Context, url string, measure func() (window, error)) (Sample, error) {
	w, c, err := counted(ctx, url, measure)
	if err != nil {
		return Sample{}, err
	}
	return newSample(w, c), nil
}

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
