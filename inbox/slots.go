package inbox

import (
	"context"
	"sync"
	"time"
)

// slots bound the handlers that run at a time.
type slots struct {
	size int

	mu    sync.Mutex
	used  int
	freed chan struct{} // closed when a slot is given back; nil while nobody waits
}

// take takes free slots, at most n.
func (s *slots) take(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = max(0, min(n, s.size-s.used))
	s.used += n
	return n
}

func (s *slots) give(n int) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}

// free is how many there are, and what is closed when there are more.
func (s *slots) free() (int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed == nil {
		s.freed = make(chan struct{})
	}
	return s.size - s.used, s.freed
}

// few is the smallest number of slots that is worth a transaction of its own: at
// saturation slots become free one at a time.
func (s *slots) few() int { return max(1, s.size/4) }

// fewTime is how long a page waits until few slots are free, where one is.
const fewTime = 5 * time.Millisecond

// wait waits until few slots are free, or until one is and late has come. It returns
// false when ctx ended first.
func (s *slots) wait(ctx context.Context, late <-chan time.Time) bool {
	few := s.few()
	for {
		n, more := s.free()
		if n >= few {
			return ctx.Err() == nil
		}
		select {
		case <-more:
		case <-late:
			few, late = 1, nil
		case <-ctx.Done():
			return false
		}
	}
}

// Room waits until the processor runs and has free slots, and returns how many messages
// the next page may bring: a page that brings no more of them is started at once. It
// returns 0 when ctx has ended. While older messages wait for slots there is no room.
func (p *Processor) Room(ctx context.Context) int {
	for ctx.Err() == nil {
		r := p.state()
		select {
		case <-ctx.Done():
			return 0
		case <-r.ended:
			continue
		case <-r.started:
		}
		free, more := r.slots.free()
		caughtUp, changed := r.isCaughtUp()
		switch {
		case !caughtUp:
			more = changed
		case free > 0:
			if r.slots.wait(ctx, time.After(fewTime)) {
				free, _ = r.slots.free()
				return max(1, free)
			}
		}
		select {
		case <-ctx.Done():
		case <-r.ended:
		case <-more:
		}
	}
	return 0
}

// reserve takes slots for messages of a page: of each key the first. It takes none
// while older messages wait for them.
func (r *run) reserve(page []delivery) map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.base == nil || r.stopping || r.behind {
		return nil
	}
	keys := make(map[string]bool, len(page))
	reserved := make(map[string]bool, len(page))
	for _, d := range page {
		if keys[d.message.OrderingKey] || reserved[d.message.ID] {
			continue
		}
		if r.slots.take(1) == 0 {
			break
		}
		keys[d.message.OrderingKey], reserved[d.message.ID] = true, true
	}
	r.handlers.Add(len(reserved))
	return reserved
}

// withdraw gives back slots that were reserved.
func (r *run) withdraw(n int) {
	r.slots.give(n)
	r.handlers.Add(-n)
}

// begin starts what a page has stored as running, in slots that were reserved for it,
// and gives the other slots back. A processor that stops gives the messages back too.
func (r *run) begin(ctx context.Context, started []claimed, reserved int) {
	r.Observer.claimed(started)
	r.mu.Lock()
	stopping := r.stopping
	if !stopping {
		for _, c := range started {
			r.hold(c) //nolint:contextcheck // a handler outlives what started it
		}
	}
	r.mu.Unlock()
	if stopping {
		r.giveBack(ctx, started)
		r.slots.give(len(started))
	}
	r.slots.give(reserved - len(started))
	r.handlers.Add(-reserved) // each handler counts itself
}
