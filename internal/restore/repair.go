// Package restore decides whose database this is: it binds the database to an account of the
// provider, and numbers the events of the ledger anew that came from another server by a dump.
//
// Events name the transactions that wrote them, and the readers of the ledger go by these
// numbers. On another server they mean other transactions, or none. Messages have no such
// numbers: those of a dump are delivered, and the inbox drops what it has received.
//
// Table: provider_account. It also writes those of the ledger, and where the audit is.
package restore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
)

// Numbering says whether the stored transactions are those of this server.
type Numbering struct {
	Newest uint64 `json:"newest"` // the highest transaction that is stored
	Next   uint64 `json:"next"`   // the server's next one
	Own    bool   `json:"own"`    // the tables did not come through a dump since they were made or repaired
}

// Foreign reports whether the stored transactions are another server's, or may be: the
// tables were dumped and restored, or name a transaction that this server has not had.
func (n Numbering) Foreign() bool { return !n.Own || n.Newest >= n.Next }

// selectNumbering reads the newest transaction ids. One index entry of the ledger; followers
// are a handful of rows.
const selectNumbering = `
select greatest(
         (select txid
            from ledger_events
           order by txid desc, position desc
           limit 1),
         (select txid
            from followers
           order by txid desc
           limit 1),
         '0')                              as newest,
       pg_snapshot_xmax(pg_current_snapshot()) as next,
       (select own
          from numbering)                 as own`

// ReadNumbering reads whether the stored transactions are this server's. While they are not,
// nothing is folded: what is committed from now on may have lower numbers than the checkpoints,
// and what came with the dump higher ones than any reader may read.
//
// It goes by a mark that a dump does not carry, so neither the server's count nor time
// changes the answer. Copied files carry the mark and the count.
// Test: TestNumbering in migrations.
func ReadNumbering(ctx context.Context, q postgres.Querier) (Numbering, error) {
	var n Numbering
	if err := q.QueryRow(ctx, selectNumbering).Scan(&n.Newest, &n.Next, &n.Own); err != nil {
		return n, fmt.Errorf("read whose transactions are stored: %w", err)
	}
	return n, nil
}

// Repaired says how many rows were numbered anew.
type Repaired struct {
	Events int64 `json:"events"` // of the ledger
}

// Bounds of the wait for the locks. Other transactions that want one of these tables wait
// behind a try, so a try is short, and the programs continue between two tries.
const (
	lockWait  = 100 * time.Millisecond // for each table; far below PostgreSQL's deadlock_timeout
	lockPause = 400 * time.Millisecond // at most, after a try that failed
	lockTries = 150                    // about a minute
	vacuumTry = 20                     // one of so many tries waits until an autovacuum gives way
)

// setLockTimeout bounds the waits for locks. Autovacuum works on what has just been restored,
// for hours where that is large. It gives way to a transaction that has waited for the table
// for deadlock_timeout. So where it is at work, some tries wait longer than that.
const setLockTimeout = `
select set_config('lock_timeout',
         case
           when $2 and exists (
                  select
                    from pg_locks
                   where database = (select oid from pg_database where datname = current_database())
                     and relation in ('ledger_events'::regclass, 'followers'::regclass, 'numbering_mark'::regclass)
                     and mode = 'ShareUpdateExclusiveLock'
                     and granted)
           then (select (setting::int + 500)::text from pg_settings where name = 'deadlock_timeout')
           else $1
         end, true)`

//go:embed repair.sql
var numberAnew string

// countNumbered counts what was numbered: all rows are written.
const countNumbered = `
select count(*)
  from ledger_events`

// Repair numbers the events of a restore and the checkpoints of the projections anew, as if
// they had been committed here before all else. The order of each charge is kept. Nothing else
// of an event is changed, and no message.
//
// It is one transaction that locks these tables and writes each of their rows. db must be
// the owner's: the ledger's guard against changes is off until the commit. It may run
// beside the programs, which wait for it, and it may be repeated: where nothing is foreign
// it changes nothing that matters. It gives up after about a minute in which other
// transactions had locked one of the tables all the time.
//
// If we die here: nothing was changed.
// Tests: TestRepairKilled, TestRestore_intoAnotherServer_losesNothing in e2e.
func Repair(ctx context.Context, db *postgres.DB) (Repaired, error) {
	for try := 1; ; try++ {
		r, err := repair(ctx, db, try%vacuumTry == 1)
		switch {
		case err == nil:
			return r, nil
		case !isLockLost(err):
			return Repaired{}, fmt.Errorf("number what was restored anew: %w", err)
		case try == lockTries:
			return Repaired{}, fmt.Errorf("number what was restored anew: the tables are in use, for example by an audit, a rebuild, a dump or a vacuum: wait for its end: %w", err)
		}
		select {
		case <-ctx.Done():
			return Repaired{}, fmt.Errorf("number what was restored anew: %w, %w", context.Cause(ctx), err)
		case <-time.After(rand.N(lockPause)): //nolint:gosec // jitter
		}
	}
}

// isLockLost reports whether another transaction held a table for too long, or was in a
// deadlock with the repair.
func isLockLost(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "55P03" || pg.Code == "40P01")
}

func repair(ctx context.Context, db *postgres.DB, stopVacuum bool) (r Repaired, err error) {
	err = pgx.BeginFunc(ctx, db.Pool(), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, setLockTimeout, lockWait.String(), stopVacuum)
		if err == nil {
			_, err = tx.Exec(ctx, postgres.ReadWholeTables)
		}
		if err == nil {
			_, err = tx.Exec(ctx, numberAnew, pgx.QueryExecModeSimpleProtocol)
		}
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, countNumbered).Scan(&r.Events)
	})
	return r, err
}
