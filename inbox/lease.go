package inbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/loop"
)

// renew extends the leases of the rows $1 that are still held under the fences $2, and
// returns them, with false for those that another transaction has locked: by the page that
// brings a new message of the key, or by the end of the claim itself. The heartbeat does
// not wait for that lock, which would cost the other rows their leases. No other holder
// can claim a locked row either, so it stays held as long as its fence is unchanged.
//
// COALESCE keeps the planner from using an index on the status.
const renew = `
with held as (
  select id from inbox where ` + isHeld + `
), free as (
  select id from inbox where ` + isHeld + ` for update skip locked
), renewed as (
  update inbox
     set due_at = clock_timestamp() + $3::interval
   where id = any (array(select id from free))
  returning id
)
select held.id, renewed.id is not null
  from held
  left join renewed on renewed.id = held.id`

const isHeld = `id = any ($1::bigint[])
     and fence = ($2::bigint[])[array_position($1::bigint[], id)]
     and coalesce(status = 'running', false)`

// renewLeases returns the rows that are still held, with false where a lock prevented the
// renewal. A row that is missing was taken over.
func (r *run) renewLeases(ctx context.Context, held []holding) (map[int64]bool, error) {
	var ids, fences []int64
	for _, h := range held {
		ids, fences = append(ids, h.row), append(fences, h.fence)
	}
	rows, _ := r.DB.Query(ctx, renew, ids, fences, r.Policy.Lease) // they have the error too
	mine := make(map[int64]bool, len(held))
	var id int64
	var renewed bool
	_, err := pgx.ForEachRow(rows, []any{&id, &renewed}, func() error { mine[id] = renewed; return nil })
	return mine, err
}

// keepLeases renews every held lease every third of a lease, and cancels the handlers of
// what was taken over.
func (r *run) keepLeases(ctx context.Context) {
	for loop.Pause(ctx, r.Policy.Lease/3, nil) {
		if err := r.renewAll(ctx, r.Policy.Lease/3); err != nil {
			r.Log.WarnContext(ctx, "leases not renewed", "receiver", r.Receiver, "error", err)
		}
	}
}

// renewAll stops after a while: a connection that never answers must not cost the leases
// that the next one could renew. Rows that were locked it tries again soon, since pages
// that follow each other may lock a row at every third of its lease.
func (r *run) renewAll(ctx context.Context, while time.Duration) error {
	r.mu.Lock()
	held := slices.Collect(maps.Values(r.held))
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, while)
	defer cancel()
	for len(held) > 0 && ctx.Err() == nil {
		mine, err := r.renewLeases(ctx, held)
		if err != nil {
			return fmt.Errorf("renew %d leases: %w", len(held), err)
		}
		held = slices.DeleteFunc(held, func(h holding) bool {
			renewed, still := mine[h.row]
			if !still {
				h.cancel(errLeaseLost)
			}
			return renewed || !still
		})
		if len(held) > 0 {
			loop.Pause(ctx, while/20, nil)
		}
	}
	return nil
}

const correctAtMost = 1000 // rows of one statement

// correctDueTimes makes due what is due later than any rule allows: it was written while
// the database's clock was ahead. Rows that another transaction has locked are skipped: it
// writes their due time anew, or the next correction finds them. A running message may
// have a holder, who keeps it for another lease.
//
// If we die here: all rows of a statement are corrected or none is, and the next full scan
// corrects them. Test: TestProcessor_claimsMessagesWhoseDueTimeIsTooFarAhead.
const correctDueTimes = `
update inbox
   set due_at = clock_timestamp() + case status when 'running' then $3::interval else interval '0' end
 where id = any (array(
         select id
           from inbox
          where receiver = $1
            and status in ('pending', 'running')
            and due_at > now() + $2::interval
          order by due_at desc
          limit $4
            for update skip locked))`
