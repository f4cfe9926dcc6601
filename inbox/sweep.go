package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
)

// now() is a moment earlier than clock_timestamp() and, unlike it, can be a
// bound of the index. A row that is locked keeps its ctid; joined by their number
// instead, a batch could be planned to read the whole table.
//
// What was received in a transaction at or above the oldest that is left in the
// outbox may be there still, and be delivered again. It is passed over inside the
// index, however much of it there is. Where the numbers are another server's, they
// tell nothing, and nothing goes.
const sweepDone = `
with due as (
  select ctid
    from inbox
   where status = 'done'
     and finished_at < now() - greatest($1::interval, (select inbox_window from retention))
     and received_in < coalesce((select transaction_id from outbox_oldest), '18446744073709551615')
     and (select own from numbering)
   order by finished_at
   limit $2
     for update skip locked
)
delete from inbox
 where ctid = any (array(select ctid from due))`

// What a claim does without, a sweep does without too: a plan that was made while
// the tables were small is kept. The settings end with the batch.
const walk = `
select set_config(name, 'off', true)
  from unnest(array['enable_bitmapscan', 'enable_seqscan', 'enable_sort', 'jit']) as s(name)`

// Sweep deletes up to limit messages that were done longer than retention ago, by
// the database's clock, and says how many there were. Where a running worker has
// announced a longer window, that one counts. Parked and discarded messages stay:
// the first wait for a human, the others tell what one has decided.
//
// A message that is delivered again after its row is gone is a new one. So no row
// goes before its message has left the outbox, however old it is: no setting, no
// clock and no reader that lags makes the outbox deliver what the inbox has
// forgotten. Of messages that came through Accept only the sender knows how late
// it can repeat them; retention should be longer than that.
//
// What remains: a page that a subscriber read before the outbox let it go, from
// an offset that was moved back, and that it writes after the inbox let it go
// too. Between the two lies the difference of the windows. Whoever comes so late,
// and whatever is restored, meets a handler that looks at what it has done.
//
// Several may sweep at once: each takes what no other holds. Fewer than limit
// means that nothing was left to do.
//
// If we die here: the statement is one transaction of its own. Either its rows
// are gone, or the next sweep finds them.
// Test: TestSweep/what_a_dead_sweeper_held_is_swept_by_the_next.
func Sweep(ctx context.Context, db *postgres.DB, retention time.Duration, limit int) (int, error) {
	swept, err := sweep(ctx, db, sweepDone, retention, limit)
	if err != nil {
		return 0, fmt.Errorf("sweep done messages: %w", err)
	}
	return swept, nil
}

// Nobody changes what was kept aside, so it keeps its ctid.
const sweepQuarantined = `
delete from inbox_quarantine
 where ctid = any (array(
         select ctid
           from inbox_quarantine
          where received_at < now() - $1::interval
          order by received_at
          limit $2))`

// SweepQuarantine deletes up to limit messages that were kept aside longer than
// retention ago, by the database's clock, and says how many there were. They were
// kept for a human only, and nothing depends on them; but a sender that gives one
// id to ever new payloads must not fill the disk for ever. Several may sweep at
// once, and who dies is followed by another, as with Sweep.
func SweepQuarantine(ctx context.Context, db *postgres.DB, retention time.Duration, limit int) (int, error) {
	swept, err := sweep(ctx, db, sweepQuarantined, retention, limit)
	if err != nil {
		return 0, fmt.Errorf("sweep the quarantine: %w", err)
	}
	return swept, nil
}

func sweep(ctx context.Context, db *postgres.DB, expired string, retention time.Duration, limit int) (int, error) {
	var swept int64
	b := &pgx.Batch{}
	b.Queue(walk)
	b.Queue(expired, retention, limit).Exec(func(tag pgconn.CommandTag) error {
		swept = tag.RowsAffected()
		return nil
	})
	err := db.Commit(ctx, b)
	return int(swept), err
}
