package inbox

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// room is where pages find places of a processor, while it runs.
type room struct {
	bell chan struct{} // the processor's Wake

	mu  sync.Mutex
	run *run
}

// open lets a run offer its places, or nobody.
func (o *room) open(r *run) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.run = r
}

// offer takes at most n free places for messages that are about to be received. Each
// is given back, or told of.
func (o *room) offer(n int) (*run, int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.run == nil {
		return nil, 0
	}
	return o.run, o.run.offer(n)
}

func (o *room) ring() {
	select {
	case o.bell <- struct{}{}:
	default: // it rings already
	}
}

// offering is the state of a run towards pages, under its lock.
type offering struct {
	offered    int       // places that pages have, or what they took that is not started
	told       []claimed // by pages that have ended, and is not looked for yet
	confirming []claimed // is looked for

	stopping  bool // nothing is offered, and what was taken is given back
	abandoned bool // nor is that waited for any more

	behind  bool            // the last claim may have left messages for which it had no place
	awaited map[string]bool // keys of what was taken on receipt and has something behind it
}

// offer takes free places, unless older messages may wait for them.
func (r *run) offer(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping || r.behind {
		return 0
	}
	n = r.more(n)
	r.offered += n
	r.handlers.Add(n) // while the loop runs: nobody waits for them yet
	return n
}

// withdraw gives back places that a page had and does not need.
func (r *run) withdraw(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.abandoned {
		r.settled(n)
		r.free(n)
	}
}

// settled ends the waiting for what was offered.
func (r *run) settled(n int) {
	r.offered -= n
	r.handlers.Add(-n)
}

// abandon ends the waiting for all of it: what was taken is taken again when its
// lease ends.
func (r *run) abandon() {
	r.abandoned = true
	r.settled(r.offered)
}

// tell says what became of a page whose transaction has ended, and answers whether
// it has left what a claim could find.
func (r *run) tell(s *share) (wake bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.abandoned {
		return true // whoever runs next
	}
	if len(s.taken) > 0 {
		r.told = append(r.told, s.taken...)
		select {
		case r.arrived <- struct{}{}:
		default: // it is looked for already
		}
	}
	keys := make(map[string]bool)
	if len(s.left) > 0 {
		for _, h := range r.held {
			keys[h.message.OrderingKey] = true
		}
		for _, c := range slices.Concat(r.told, r.confirming) {
			keys[c.OrderingKey] = true
		}
	}
	wake = s.without
	for _, key := range s.left {
		if keys[key] {
			r.awaited[key] = true // its end is worth a claim
		} else {
			wake = true
		}
	}
	return wake
}

// isAwaited tells, once, whether something waits behind a message that has ended.
// r.mu is held.
func (r *run) isAwaited(c claimed) bool {
	awaited := r.awaited[c.OrderingKey]
	delete(r.awaited, c.OrderingKey)
	return awaited
}

func (r *run) isBehind() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.behind
}

func (r *run) setBehind(behind bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.behind = behind
}

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
