package audit

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

//go:embed increment.sql
var rowsOfCharges string

// setCharges names the charges of the statement that follows it in a batch, and the topics of
// their messages.
const setCharges = `
select set_config('payonce.charges', ($1::text[])::text, true),
       set_config('payonce.topics', ($2::text[])::text, true)`

// checkCharges makes every check that the rows of one charge can show, in two statements and
// the more the more events the charges have.
func checkCharges(ctx context.Context, db Database, charges []string) ([]Check, error) {
	of := source{db, charges}
	checks, err := checkStreams(ctx, of)
	if err != nil {
		return nil, err
	}
	more, err := checkInvariants(ctx, of, slices.DeleteFunc(slices.Clone(invariants), func(p invariant) bool { return p.whole }))
	return append(checks, more...), err
}

const (
	incrementEvents = 1000
	incrementLease  = time.Minute // above what an increment takes
)

const (
	// claimIncrement claims the next increment, once its time has come. While positions are
	// those of another server there is none. A time that is later than any worker sets was
	// written while the database's clock was ahead.
	claimIncrement = `
update audit_progress
   set fence  = fence + 1,
       due_at = clock_timestamp() + $1::interval
 where (due_at <= clock_timestamp() or due_at > clock_timestamp() + greatest($1::interval, $2::interval))
   and (select own from numbering)
returning fence, txid, position, clock_timestamp(),
       coalesce((select min(recorded_at)
                   from ledger_events
                  where txid >= pg_snapshot_xmin(pg_current_snapshot())), clock_timestamp())`

	// selectIncrement stays below the oldest open transaction: no event will appear between those
	// that it reads. A charge is audited with its newest event.
	selectIncrement = `
select e.txid,
       e.position,
       e.recorded_at,
       e.stream_id,
       not exists (
         select
           from ledger_events newer
          where newer.stream_id = e.stream_id
            and newer.version > e.version) as newest
  from ledger_events e
 where (e.txid, e.position) > ($1, $2)
   and e.txid < pg_snapshot_xmin(pg_current_snapshot())
 order by e.txid, e.position
 limit $3`

	// endIncrement is refused, and returns no row, if another worker has claimed since. Where
	// there is more ($7), the pause is 19 times what the increment took.
	endIncrement = `
update audit_progress
   set txid          = $2,
       position      = $3,
       checked       = checked + $4,
       violated      = violated + $5,
       audited_until = $6,
       due_at        = clock_timestamp() + case
                                             when $7 then least($8::interval, 19 * (clock_timestamp() - $9::timestamptz))
                                             else $8
                                           end
 where fence = $1
returning due_at - clock_timestamp()`
)

// Continue audits the next charges that have new events, those of at most 1,000 events, and
// returns the checks that they violate and how long to pause before the next call. Of several
// workers that call it one audits at a time. A whole increment is followed by the next one
// after a pause that leaves 19 of 20 parts of the time to others, and what was the rest by an
// interval.
//
// If we die here: what was found and how far the audit is are one row, written by one
// statement. The increment is made again after its lease, and counted once.
// Test: TestContinue_countsAnIncrementOnce.
func Continue(ctx context.Context, db *postgres.DB, interval time.Duration) (violated []Check, pause time.Duration, err error) {
	var fence, position int64
	var txid uint64
	var claimed, until time.Time // the tables as they were at the claim; what was recorded before until is audited
	err = db.QueryRow(ctx, claimIncrement, incrementLease, interval).Scan(&fence, &txid, &position, &claimed, &until)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, min(interval, incrementLease), nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("claim the next increment of the audit: %w", err)
	}
	type event struct {
		Txid       uint64
		Position   int64
		RecordedAt time.Time
		StreamID   string
		Newest     bool
	}
	events, err := collect[event](ctx, db, "the events behind the audit", selectIncrement, txid, position, incrementEvents)
	if err != nil {
		return nil, 0, err
	}
	var charges []string
	for _, e := range events {
		txid, position = e.Txid, e.Position
		if e.Newest {
			charges = append(charges, e.StreamID)
		}
	}
	var checks []Check
	if len(charges) > 0 {
		if checks, err = checkCharges(ctx, db, charges); err != nil {
			return nil, 0, err
		}
	}
	more := len(events) == incrementEvents
	if more {
		until = events[len(events)-1].RecordedAt
	}
	found, broken := sum(checks)
	err = db.QueryRow(ctx, endIncrement, fence, txid, position, found, broken, until, more, interval, claimed).Scan(&pause)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, min(interval, incrementLease), nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("store what an increment of the audit found: %w", err)
	}
	return slices.DeleteFunc(checks, func(c Check) bool { return c.Violated == 0 }), pause, nil
}

// Progress is what the increments of the workers have come to.
type Progress struct {
	Until    time.Time // what was recorded before has been audited
	Violated int64     // of all increments
	New      int64     // of those that began after the last audit of the tables
}

const selectProgress = `
select audited_until as until,
       violated,
       violated - superseded as new
  from audit_progress`

// ReadProgress reads how far the workers have audited.
func ReadProgress(ctx context.Context, q postgres.Querier) (Progress, error) {
	found, err := collect[Progress](ctx, q, "how far the workers have audited", selectProgress)
	if err != nil {
		return Progress{}, err
	}
	return found[0], nil
}

const updateSuperseded = `
update audit_progress
   set superseded = greatest(superseded, $1)`

// MarkSuperseded queues that a finished audit of the tables covers the violations that the
// increments had found up to p, when it began. The metrics then no longer report what the increments had found before it: what is
// still violated is in the audit's own result.
func (p Progress) MarkSuperseded(b *pgx.Batch) { b.Queue(updateSuperseded, p.Violated) }
