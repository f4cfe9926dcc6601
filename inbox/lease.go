package inbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// A heartbeat waits for nobody: a row that is locked at this moment, by the page
// that brings a new message of its key or by the end of its own claim, must not
// cost the others their leases. It stays ours as long as it has our fence, since
// nobody else can claim what is locked either, and it is tried again soon: pages
// that follow each other may hold it at every third of the lease.
//
// Each row is probed by its number. Coalesced, its status leads to no index, which
// would be read whole.
const renew = `
with held as (
  select id,
         fence
    from unnest($1::bigint[], $2::bigint[]) as h(id, fence)
), mine as (
  select i.id
    from held
   cross join lateral (
         select id
           from inbox
          where id = held.id
            and fence = held.fence
            and coalesce(status = 'running', false)
         offset 0) i
), free as (
  select i.id
    from held
   cross join lateral (
         select id
           from inbox
          where id = held.id
            and fence = held.fence
            and coalesce(status = 'running', false)
            for update skip locked) i
), renewed as (
  update inbox
     set due_at = clock_timestamp() + $3::interval
   where id = any (array(select id from free))
  returning id
)
select mine.id,
       renewed.id is not null
  from mine
  left join renewed
    on renewed.id = mine.id`

// renewLeases moves the end of the leases that are still held and returns the
// rows of those, with false where a lock was in the way. A row that is missing was
// taken over.
func renewLeases(ctx context.Context, q postgres.Querier, held []holding, lease time.Duration) (map[int64]bool, error) {
	ids, fences := make([]int64, len(held)), make([]int64, len(held))
	for i, h := range held {
		ids[i], fences[i] = h.message.row, h.message.fence
	}
	rows, err := q.Query(ctx, renew, ids, fences, lease)
	if err != nil {
		return nil, fmt.Errorf("renew %d leases: %w", len(held), err)
	}
	mine := make(map[int64]bool, len(held))
	var id int64
	var renewed bool
	if _, err := pgx.ForEachRow(rows, []any{&id, &renewed}, func() error { mine[id] = renewed; return nil }); err != nil {
		return nil, fmt.Errorf("renew %d leases: %w", len(held), err)
	}
	return mine, nil
}

// keepLeases renews every lease that is held, every third of a lease, and
// cancels the handlers of what was taken over.
func (r *run) keepLeases(ctx context.Context) {
	third := r.Policy.Lease / 3
	tick := time.NewTicker(third)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.renew(ctx, third)
		}
	}
}

// renew gives up after a while: a connection that never answers must not cost
// the leases that the next one could keep.
func (r *run) renew(ctx context.Context, patience time.Duration) {
	r.mu.Lock()
	held := slices.Collect(maps.Values(r.held))
	r.mu.Unlock()
	if len(held) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		mine, err := renewLeases(ctx, r.DB, held, r.Policy.Lease)
		if err != nil {
			r.Log.WarnContext(ctx, "leases not renewed", "receiver", r.Receiver, "error", err)
			return
		}
		var locked []holding
		for _, h := range held {
			renewed, still := mine[h.message.row]
			switch {
			case !still:
				h.cancel(errLeaseLost)
			case !renewed:
				locked = append(locked, h)
			}
		}
		if len(locked) == 0 {
			return
		}
		held = locked
		select {
		case <-ctx.Done():
			return
		case <-time.After(patience / 20):
		}
	}
}
