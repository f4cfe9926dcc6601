package retention

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// windows are how long messages are kept.
type windows struct{ Outbox, Inbox time.Duration }

// Each worker says at start, and then again and again, how long it was told to
// keep messages; a sweep reads in its own statement what all have said. They may
// disagree, after a change of settings or by mistake, and the longest window
// counts: the worker with the longest outbox has an inbox that is longer still,
// or it had not started, so the longest inbox is longer than the longest outbox.
// A worker that is gone counts for another hour. So no start has to be refused
// because of another worker, and no order in which they start does harm.
//
// Even that only decides how long is kept. That the inbox does not forget what
// the outbox can deliver hangs on the rows themselves, see inbox.Sweep.
//
// The lease is a row and its time the database's. Should its holder stand still
// and wake up beside a successor, each takes what no other holds: the work is
// done by two, no row twice. A lease that ends later than any worker could
// set was written while the database's clock was ahead: it is over.
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
  insert into janitor_lease
         (holder, until)
  values ($1, clock_timestamp() + $4::interval)
  on conflict (only_one) do update
     set holder = excluded.holder,
         until  = excluded.until
   where janitor_lease.holder = excluded.holder
      or janitor_lease.until < clock_timestamp()
      or janitor_lease.until > clock_timestamp() + $5::interval
  returning 1
)
select exists (select from held),
       greatest($2::interval, outbox_window),
       greatest($3::interval, inbox_window)
  from retention`

// hold announces this worker's windows and takes the lease, or renews it. It says
// whether this is the janitor now.
//
// If we die here: the statement is one transaction. The lease is ours or it is
// not, and ours ends.
func (j *Janitor) hold(ctx context.Context) (mine bool, err error) {
	own, longest := windows{j.OutboxRetention, j.InboxRetention}, windows{}
	err = j.DB.QueryRow(ctx, holdLease, j.Name, own.Outbox, own.Inbox, max(3*j.every(), leaseLeast), leaseLongest).
		Scan(&mine, &longest.Outbox, &longest.Inbox)
	if err != nil {
		return false, fmt.Errorf("take the janitor's lease: %w", err)
	}
	if longest != own && longest != j.warned {
		j.warned = longest
		j.Log.WarnContext(ctx, "workers disagree on retention, the longest counts",
			"outbox", longest.Outbox.String(), "inbox", longest.Inbox.String())
	}
	return mine, nil
}

const releaseTime = time.Second

const releaseLease = `
update janitor_lease
   set until = '-infinity'
 where holder = $1`

// release lets another worker be the janitor at once. Without it, one is when the
// lease ends.
func (j *Janitor) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	b := &pgx.Batch{}
	b.Queue(releaseLease, j.Name)
	if err := j.DB.Commit(ctx, b); err != nil {
		j.Log.DebugContext(ctx, "the janitor's lease was not released and ends by itself", "error", err)
	}
}
