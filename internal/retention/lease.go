package retention

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	shortestLease = 5 * time.Second     // above what a round takes
	longestLease  = 3 * longestInterval // of any worker, whatever its settings
	releaseTime   = time.Second
)

// windows are how long messages are kept.
type windows struct{ Outbox, Inbox time.Duration }

// holdLease takes or renews the lease. Each worker announces, at start and in each round, how
// long it keeps messages. Workers may disagree, after a change of settings or by mistake: the
// longest windows count, and each round deletes by those that its hold returned. The worker
// with the longest outbox window has a longer inbox window, or it had not started; so the
// longest inbox window is longer than the longest outbox window. The windows of a worker that
// is gone count for an hour.
//
// The windows only decide how long rows are kept. That the inbox forgets no message that
// the outbox can deliver depends on the rows themselves, see inbox.DeleteExpired.
//
// The lease is a row, and its time the database's. If a holder stands still and continues
// beside its successor, each deletes rows that the other has not locked. A lease that ends
// later than any worker could set was written while the database's clock was ahead: it
// is over.
const holdLease = `
with announced as (
  insert into retention_windows
         (worker, outbox_window, inbox_window)
  values ($1, $2, $3)
  on conflict (worker) do update
     set outbox_window = excluded.outbox_window,
         inbox_window  = excluded.inbox_window,
         seen_at       = excluded.seen_at
), forgotten as (
  delete from retention_windows
   where worker <> $1
     and seen_at < now() - interval '1 day'
), held as (
  insert into retention_lease
         (holder, until)
  values ($1, clock_timestamp() + $4::interval)
  on conflict (only_one) do update
     set holder = excluded.holder,
         until  = excluded.until
   where retention_lease.holder = excluded.holder
      or retention_lease.until < clock_timestamp()
      or retention_lease.until > clock_timestamp() + $5::interval
  returning 1
)
select exists (select from held),
       greatest($2::interval, outbox_window),
       greatest($3::interval, inbox_window)
  from retention`

// hold announces this worker's windows, and takes or renews the lease. It returns whether
// this job has the lease now.
//
// If we die here: the statement is one transaction. This job has the lease or it does not,
// and a lease ends.
func (j *Job) hold(ctx context.Context) (held bool, err error) {
	own := windows{j.OutboxWindow, j.InboxWindow}
	err = j.DB.QueryRow(ctx, holdLease, j.Name, own.Outbox, own.Inbox, max(3*j.interval(), shortestLease), longestLease).
		Scan(&held, &j.longest.Outbox, &j.longest.Inbox)
	if err != nil {
		return false, fmt.Errorf("take the lease of the retention job: %w", err)
	}
	if j.longest != own && j.longest != j.warned {
		j.warned = j.longest
		j.Log.WarnContext(ctx, "workers disagree on retention, the longest counts",
			"outbox", j.longest.Outbox.String(), "inbox", j.longest.Inbox.String())
	}
	return held, nil
}

const releaseLease = `
update retention_lease
   set until = '-infinity'
 where holder = $1`

// release lets the job of another worker begin at once, not when the lease ends.
func (j *Job) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	b := &pgx.Batch{}
	b.Queue(releaseLease, j.Name)
	if err := j.DB.Commit(ctx, b); err != nil {
		j.Log.DebugContext(ctx, "the lease of the retention job was not released and expires", "error", err)
	}
}
