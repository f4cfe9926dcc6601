package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// confirmAlways starts what was taken on receipt, until ctx ends.
func (r *run) confirmAlways(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.arrived:
			r.startTold(ctx)
		}
	}
}

// startTold starts what is there of what pages have taken. A page may have been
// rolled back, and then it is not.
//
// If we die here: the rows are leased to nobody, as after a claim. Test:
// TestHandover/what_a_process_took_that_died_is_taken_over.
func (r *run) startTold(ctx context.Context) {
	r.mu.Lock()
	told := r.told
	r.told, r.confirming = nil, told
	r.mu.Unlock()
	if len(told) == 0 {
		return // it came with those before
	}
	there := r.confirm(ctx, told)

	r.mu.Lock()
	if r.abandoned {
		r.mu.Unlock()
		return
	}
	stopping := r.stopping
	r.mu.Unlock()
	var mine, gone []claimed
	for _, c := range told {
		if there[c.row] {
			mine = append(mine, c)
		} else {
			gone = append(gone, c)
		}
	}
	r.Observer.claimed(mine)
	if stopping {
		r.giveBack(ctx, mine)
		gone, mine = told, nil
	}
	wake := false
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.abandoned {
		for range mine {
			r.Observer.ended(EndLeft)
		}
		return
	}
	for _, c := range mine {
		r.hold(ctx, c)
	}
	for _, c := range gone {
		wake = r.isAwaited(c) || wake
		r.free(1)
	}
	r.confirming = nil
	r.settled(len(told))
	if wake {
		r.room.ring()
	}
}

// A row that this process has inserted has its first fence for as long as nobody else
// has claimed it. Each is probed by its number, as in renew.
const confirm = `
with told as (
  select id
    from unnest($1::bigint[]) as t(id)
)
select i.id
  from told
 cross join lateral (
         select id
           from inbox
          where id = told.id
            and fence = 1
            and holder = $2
            and coalesce(status = 'running', false)
         offset 0) i`

// confirm returns the rows of those messages that are there and held by this process.
// It asks until the store answers, and no longer than for a lease.
func (r *run) confirm(ctx context.Context, told []claimed) map[int64]bool {
	ctx, cancel := context.WithTimeout(ctx, r.Policy.Lease)
	defer cancel()
	for first := true; ; first = false {
		there, err := r.areThere(ctx, told)
		if err == nil {
			return there
		}
		if first && ctx.Err() == nil {
			r.Log.WarnContext(ctx, "what was taken on receipt is not confirmed, it is tried again while its lease lasts",
				"receiver", r.Receiver, "messages", len(told), "error", err)
		}
		if !pause(ctx, time.After(afterFailure)) {
			return nil
		}
	}
}

func (r *run) areThere(ctx context.Context, told []claimed) (map[int64]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Policy.Lease/3)
	defer cancel()
	ids := make([]int64, len(told))
	for i, c := range told {
		ids[i] = c.row
	}
	rows, err := r.DB.Query(ctx, confirm, ids, r.Holder)
	if err != nil {
		return nil, fmt.Errorf("confirm %d messages: %w", len(told), err)
	}
	there := make(map[int64]bool, len(told))
	var id int64
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { there[id] = true; return nil }); err != nil {
		return nil, fmt.Errorf("confirm %d messages: %w", len(told), err)
	}
	return there, nil
}
