package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
)

// What was received in a transaction at or above the oldest that is left in the outbox
// may still be there and be redelivered. The index skips it, however much of it there is.
// Where transaction ids are another server's, they say nothing, and nothing is deleted.
// A locked row keeps its ctid; a join by number could be planned to read the table.
const deleteDone = `
delete from inbox
 where ctid = any (array(
         select ctid
           from inbox
          where status = 'done'
            and finished_at < now() - greatest($1::interval, (select inbox_window from retention))
            and received_in < coalesce((select transaction_id from outbox_oldest), '18446744073709551615')
            and (select own from numbering)
          order by finished_at
          limit $2
            for update skip locked))`

// Sweep deletes up to limit messages that were done longer than retention ago, in
// database time, and returns how many it deleted; below limit, nothing was left. Where a
// running worker has announced a longer window, that window counts. Dead letters and
// discarded messages stay. Several callers may sweep concurrently.
//
// A message that is redelivered after its row is gone would be new. So no row is deleted
// before its message has left the outbox, whatever the settings and the clocks say. Of
// messages that came through Accept only the sender knows how late it may repeat them;
// retention should be longer than that. One case remains: a page that a subscriber read
// before the outbox deleted it, after an offset was moved back, and that is stored after
// the inbox deleted its rows too. A handler looks at what it has already done, so it does
// nothing twice in this case either.
//
// If we die here: the statement is a transaction of its own. Its rows are gone, or the
// next sweep finds them. Test: TestSweep/what_a_dead_sweeper_held_is_swept_by_the_next.
func Sweep(ctx context.Context, db *postgres.DB, retention time.Duration, limit int) (int, error) {
	return sweep(ctx, db, "done", deleteDone, retention, limit)
}

// A quarantined row never changes, so it keeps its ctid.
const deleteQuarantined = `
delete from inbox_quarantine
 where ctid = any (array(
         select ctid
           from inbox_quarantine
          where received_at < now() - $1::interval
          order by received_at
          limit $2))`

// SweepQuarantine is Sweep for messages that were quarantined longer than retention ago.
// Nothing depends on them, and a sender that repeats one id with ever new payloads must
// not fill the disk.
func SweepQuarantine(ctx context.Context, db *postgres.DB, retention time.Duration, limit int) (int, error) {
	return sweep(ctx, db, "quarantined", deleteQuarantined, retention, limit)
}

func sweep(ctx context.Context, db *postgres.DB, what, expired string, retention time.Duration, limit int) (int, error) {
	var deleted int64
	b := &pgx.Batch{}
	b.Queue(expired, retention, limit).Exec(func(tag pgconn.CommandTag) error {
		deleted = tag.RowsAffected()
		return nil
	})
	if err := db.Commit(ctx, b); err != nil {
		return 0, fmt.Errorf("delete %s messages: %w", what, err)
	}
	return int(deleted), nil
}
