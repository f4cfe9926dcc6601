// Package restore numbers rows anew that came from another server by a dump.
//
// Rows name the transactions that wrote them, and readers of the outbox and the ledger go by
// these numbers. On another server they mean other transactions, or none.
//
// Tables: none. It writes those of the ledger, the outbox and the inbox.
package restore

import (
	"context"
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

// One index entry each; offsets and live projections are a handful of rows.
const selectNumbering = `
select greatest(
         (select transaction_id
            from outbox_offsets
           order by transaction_id desc
           limit 1),
         (select txid
            from ledger_events
           order by txid desc, position desc
           limit 1),
         (select txid
            from projections
           where state = 'live'
           order by txid desc
           limit 1),
         '0')                              as newest,
       pg_snapshot_xmax(pg_current_snapshot()) as next,
       (select own
          from numbering)                 as own`

// ReadNumbering reads whether the stored transactions are this server's. Readers pass over
// messages while they are not: what is committed from now on has lower numbers than the
// offsets, and what came with the dump has higher ones than any reader may read.
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
	Events   int64 `json:"events"`   // of the ledger
	Messages int64 `json:"messages"` // of the outbox, all of which are delivered again
	Received int64 `json:"received"` // of the inbox
}

// The numbers that a repair gives. A server's own transactions begin at 3 and are in the
// hundreds before a table is made, so all that is committed later is newer. Within each
// number the order is that of the position or the offset: both follow the versions of a
// stream.
//
//	1  folded into the projections, and before all messages that are left
//	2  folded, and with a message of its charge left at or before it
//	3  not folded yet

// Bounds of the wait for the locks. Other transactions that want one of these tables wait
// behind a try, so a try is short, and the programs continue between two tries.
const (
	lockWait  = 100 * time.Millisecond // for each table; far below PostgreSQL's deadlock_timeout
	lockPause = 400 * time.Millisecond // at most, after a try that failed
	lockTries = 150                    // about a minute
	vacuumTry = 20                     // one of so many tries waits until an autovacuum gives way
)

// Autovacuum works on what has just been restored, for hours where that is large. It gives
// way to a transaction that has waited for the table for deadlock_timeout. So where it is
// at work, some tries wait longer than that.
const setLockTimeout = `
select set_config('lock_timeout',
         case
           when $2 and exists (
                  select
                    from pg_locks
                   where database = (select oid from pg_database where datname = current_database())
                     and relation in ('ledger_events'::regclass, 'outbox_offsets'::regclass, 'outbox'::regclass,
                                      'inbox'::regclass, 'projections'::regclass, 'numbering_mark'::regclass)
                     and mode = 'ShareUpdateExclusiveLock'
                     and granted)
           then (select (setting::int + 500)::text from pg_settings where name = 'deadlock_timeout')
           else $1
         end, true)`

// A reader waits for the lock before it reads, so no reader continues with numbers that are
// gone. The order is that of most programs; a repair that meets another order, or another
// repair, gives up its try.
const lockNumbered = `
lock table ledger_events, outbox_offsets, outbox, inbox, projections, numbering_mark
  in access exclusive mode`

const unlockLedger = `
alter table ledger_events
disable trigger ledger_events_append_only`

const relockLedger = `
alter table ledger_events
 enable trigger ledger_events_append_only`

// An event was folded if the live list has its version, not if it lies below the checkpoint:
// events that were committed between the restore and the repair lie below it too.
const numberEvents = `
with kept as (
  select e.stream_id,
         min(e.version) as version
    from outbox o
    join ledger_events e
      on e.event_id::text = o.message_id
   group by e.stream_id
), numbered as (
  select e.position,
         (case
            when e.version > coalesce(l.version, 0) then '3'
            when e.version >= k.version             then '2'
            else '1'
          end)::xid8 as txid
    from ledger_events e
    left join kept k
      on k.stream_id = e.stream_id
    left join charge_list l
      on l.charge_id = e.stream_id
     and l.generation = (select generation from projections where state = 'live')
)
update ledger_events e
   set txid = n.txid
  from numbered n
 where n.position = e.position`

// A message and its event are of one transaction.
const numberMessages = `
update outbox
   set transaction_id = coalesce(
         (select e.txid
            from ledger_events e
           where e.event_id = case
                                when outbox.message_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                                then outbox.message_id::uuid
                              end),
         '2')`

const resetOffsets = `
update outbox_offsets
   set transaction_id = '0',
       "offset"       = 0`

// As new as the newest messages of the dump, so that the inbox forgets none of them while
// it may be delivered.
const numberReceived = `
update inbox
   set received_in = '3'`

// A generation that is being built is given up, and a projector that folds meanwhile is
// refused. The checkpoint is that of an event, or zero: a rebuild that has folded as much
// has the same one.
const moveProjections = `
update projections
   set state              = case state when 'live' then 'live' else 'retired' end,
       txid               = coalesce((select txid from ledger_events where txid <= '2' order by txid desc limit 1), '0'),
       position           = coalesce((select position from ledger_events where txid <= '2' order by txid desc, position desc limit 1), 0),
       took_over_txid     = '0',
       took_over_position = 0,
       batch              = batch + 1,
       after              = batch`

// A dump carries neither the transaction that wrote a row nor a dropped column.
const markOwn = `
insert into numbering_mark (written_in)
values (pg_current_xact_id())
    on conflict (only_one) do update
   set written_in = excluded.written_in`

const scar = `
alter table numbering_mark
  add column scar boolean`

const dropScar = `
alter table numbering_mark
 drop column scar`

// Repair numbers the rows of a restore anew, as if they had been committed here before all
// else: the events of the ledger, the messages of the outbox and the inbox, and the
// checkpoints of the projections. The order of each charge is kept. All messages of the
// outbox are delivered again, and the inbox, which remembers longer than the outbox keeps,
// takes none of them twice. Nothing else of an event is changed.
//
// It is one transaction that locks these tables and writes each of their rows. db must be
// the owner's: the ledger's guard against changes is off until the commit. It may run
// beside the programs, which wait for it, and it may be repeated: where nothing is foreign
// it changes nothing that matters. It gives up after about a minute in which other
// transactions had locked one of the tables all the time.
//
// If we die here: nothing was changed.
// Tests: TestRepairKilled, TestRestore in e2e.
func Repair(ctx context.Context, db *postgres.DB) (Repaired, error) {
	for try := 1; ; try++ {
		r, err := repair(ctx, db, try%vacuumTry == 1)
		switch {
		case err == nil:
			return r, nil
		case !isLockLost(err):
			return Repaired{}, fmt.Errorf("number what was restored anew: %w", err)
		case try == lockTries:
			return Repaired{}, fmt.Errorf("number what was restored anew: the tables are in use, perhaps by an audit, a rebuild, a dump or a vacuum: wait for its end: %w", err)
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

func repair(ctx context.Context, db *postgres.DB, stopVacuum bool) (Repaired, error) {
	var r Repaired
	err := pgx.BeginFunc(ctx, db.Pool(), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, setLockTimeout, lockWait.String(), stopVacuum); err != nil {
			return err
		}
		for _, step := range []struct {
			sql   string
			count *int64
		}{
			{postgres.ReadWholeTables, nil},
			{lockNumbered, nil},
			{unlockLedger, nil},
			{numberEvents, &r.Events},
			{relockLedger, nil},
			{numberMessages, &r.Messages},
			{resetOffsets, nil},
			{numberReceived, &r.Received},
			{moveProjections, nil},
			{scar, nil},
			{dropScar, nil},
			{markOwn, nil},
		} {
			done, err := tx.Exec(ctx, step.sql)
			if err != nil {
				return err
			}
			if step.count != nil {
				*step.count = done.RowsAffected()
			}
		}
		return nil
	})
	return r, err
}
