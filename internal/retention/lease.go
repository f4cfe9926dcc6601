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

// holdLease takes or renews the lease.
//
// The lease is a row, and its time the database's. If a holder stands still and continues
// beside its successor, each deletes rows that the other has not locked. A lease that ends
// later than any worker could set was written while the database's clock was ahead: it
// is over.
const holdLease = `
with held as (
  insert into retention_lease
         (holder, until)
  values ($1, clock_timestamp() + $2::interval)
  on conflict (only_one) do update
     set holder = excluded.holder,
         until  = excluded.until
   where retention_lease.holder = excluded.holder
      or retention_lease.until < clock_timestamp()
      or retention_lease.until > clock_timestamp() + $3::interval
  returning 1
)
select exists (select from held)`

// hold takes or renews the lease. It returns whether this job has the lease now.
//
// If we die here: the statement is one transaction. This job has the lease or it does not,
// and a lease ends.
func (j *Job) hold(ctx context.Context) (held bool, err error) {
	err = j.DB.QueryRow(ctx, holdLease, j.Name, max(3*j.interval(), shortestLease), longestLease).Scan(&held)
	if err != nil {
		return false, fmt.Errorf("take the lease of the retention job: %w", err)
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
