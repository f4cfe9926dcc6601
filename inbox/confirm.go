package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// underWay is how long a page whose transaction has not ended yet is left alone.
const underWay = 10 * time.Millisecond

// confirmAlways starts what was taken on receipt, until ctx ends.
func (r *run) confirmAlways(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.arrived:
		}
		for again := true; again; {
			again = r.startTold(ctx) && pause(ctx, time.After(underWay))
		}
	}
}

// startTold starts what is there of what pages have taken, and tells whether it has
// to be looked for again: Ended may be told of a commit whose answer was lost, or not
// waited for, while the server is at it. A page may have been rolled back, and then
// nothing of it is there.
//
// If we die here: the rows are leased to nobody, as after a claim. Test:
// TestHandover/what_a_process_took_that_died_is_taken_over.
func (r *run) startTold(ctx context.Context) (again bool) {
	r.mu.Lock()
	told := r.told
	r.told, r.confirming = nil, told
	r.mu.Unlock()
	if len(told) == 0 {
		return false // it came with those before
	}
	states := r.confirm(ctx, told)

	r.mu.Lock()
	if r.abandoned {
		r.mu.Unlock()
		return false
	}
	stopping := r.stopping
	r.mu.Unlock()
	var mine, gone, open []claimed
	for i, c := range told {
		switch states[i] {
		case pageOpen:
			open = append(open, c)
		case rowThere:
			mine = append(mine, c)
		default:
			gone = append(gone, c)
		}
	}
	r.Observer.claimed(mine)
	if stopping {
		r.giveBack(ctx, mine)
		gone, mine = append(gone, mine...), nil
	}
	wake := false
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.abandoned {
		for range mine {
			r.Observer.ended(EndLeft)
		}
		return false
	}
	for _, c := range mine {
		if _, ok := r.held[c.row]; ok { // by a claim since that read: its fence is higher
			r.Observer.ended(EndLost)
			gone = append(gone, c)
			continue
		}
		r.hold(ctx, c)
	}
	for _, c := range gone {
		wake = r.isAwaited(c) || wake
		r.free(1)
	}
	r.told, r.confirming = append(open, r.told...), nil
	r.settled(len(told) - len(open))
	if wake {
		r.room.ring()
	}
	return len(open) > 0
}

// pageState is what became of a message that a page has taken.
type pageState int

const (
	rowGone  pageState = iota // rolled back, or held by somebody else
	rowThere                  // and ours
	pageOpen                  // the page's transaction has not ended
)

// A row that this process has inserted has its first fence for as long as nobody else
// has claimed it. Each is probed by its number, as in renew. A server that crashes
// forgets the numbers of what it has not committed, and gives them away again; so the
// row must be of the same moment too.
//
// What is not there while its transaction is under way may still come, until its
// lease would have ended.
const confirm = `
with told as (
  select id,
         received_at,
         received_in::xid8 as received_in,
         place
    from unnest($1::bigint[], $2::timestamptz[], $3::text[])
    with ordinality as t (id, received_at, received_in, place)
)
select told.place,
       i.id is not null as there
  from told
  left join lateral (
         select id
           from inbox
          where id = told.id
            and fence = 1
            and holder = $4
            and received_at = told.received_at
            and coalesce(status = 'running', false)
         offset 0) i
    on true
 where i.id is not null
    or not pg_visible_in_snapshot(told.received_in, pg_current_snapshot())
   and told.received_at + $5::interval > clock_timestamp()`

// confirm asks what became of those messages until the store answers, and no longer
// than for a lease.
func (r *run) confirm(ctx context.Context, told []claimed) []pageState {
	ctx, cancel := context.WithTimeout(ctx, r.Policy.Lease)
	defer cancel()
	for first := true; ; first = false {
		states, err := r.statesOf(ctx, told)
		if err == nil {
			return states
		}
		if first && ctx.Err() == nil {
			r.Log.WarnContext(ctx, "what was taken on receipt is not confirmed, it is tried again while its lease lasts",
				"receiver", r.Receiver, "messages", len(told), "error", err)
		}
		if !pause(ctx, time.After(afterFailure)) {
			return make([]pageState, len(told))
		}
	}
}

func (r *run) statesOf(ctx context.Context, told []claimed) ([]pageState, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Policy.Lease/3)
	defer cancel()
	ids, moments, transactions := make([]int64, len(told)), make([]time.Time, len(told)), make([]string, len(told))
	for i, c := range told {
		ids[i], moments[i], transactions[i] = c.row, c.claimed, c.receivedIn
	}
	rows, err := r.DB.Query(ctx, confirm, ids, moments, transactions, r.Holder, r.Policy.Lease)
	if err != nil {
		return nil, fmt.Errorf("confirm %d messages: %w", len(told), err)
	}
	states := make([]pageState, len(told))
	var place int
	var there bool
	if _, err := pgx.ForEachRow(rows, []any{&place, &there}, func() error {
		states[place-1] = pageOpen
		if there {
			states[place-1] = rowThere
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("confirm %d messages: %w", len(told), err)
	}
	return states, nil
}
