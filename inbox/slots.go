package inbox

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// slots are the Concurrency slots of a processor. Each is free, reserved by a claim in flight, or has a handler (running).
// reserve takes free slots for a claim, start gives them to handlers or frees them, and end frees that of a handler.
//
// What may leave a due message unclaimed, or store one behind a message that runs, counts as missed. The end of a handler
// wakes the loop if the count has changed since its claim, if it is another end than done, or if a message waited behind
// its own when that was claimed. A lost wake costs a second.
type slots struct {
	missed atomic.Int64
	active sync.WaitGroup // of the loop, claims and handlers

	mu       sync.Mutex
	total    int
	open     bool // claims may begin
	paused   bool
	pausedIn []string // partitions
	reserved int      // by claims that have not started yet what they claimed
	running  map[*Delivery]bool
}

// grant is what a claim may take.
type grant struct {
	slots  int      // 7/8 of those that are free
	spare  int      // free ones beside these
	except []string // partitions that hold 7/8 of all slots, or are paused, or are left out
	missed int64    // before the claim
}

func share(slots int) int { return max(1, 7*slots/8) }

// reserve reserves free slots for a claim, at most so many. A page claims from all partitions or not at all: its
// claim would read all that those have due which it leaves out.
func (s *slots) reserve(most int, page bool, leftOut []string) grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := grant{missed: s.missed.Load(), except: slices.Concat(s.pausedIn, leftOut)}
	has := map[string]int{}
	for d := range s.running {
		if has[d.Partition]++; d.Partition != "" && has[d.Partition] == share(s.total) {
			g.except = append(g.except, d.Partition)
		}
	}
	free := s.total - len(s.running) - s.reserved
	if s.reserved > 0 {
		free-- // the claim in flight may take messages of one partition only: a slot stays for others
	}
	if free <= 0 || len(g.except) > 0 {
		s.missed.Add(1)
	}
	if !s.open || s.paused || free <= 0 || page && len(g.except) > 0 {
		return g
	}
	g.slots = min(share(free), most)
	g.spare = free - g.slots
	s.reserved += g.slots
	s.active.Add(1)
	return g
}

// start runs handlers of what a claim has claimed in the slots that it reserved. They outlive ctx, of the claim or page.
func (s *slots) start(ctx context.Context, g grant, claimed []*Delivery, handle func(ctx context.Context, d *Delivery)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range claimed {
		handling, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		d.cancel, d.missed = cancel, g.missed
		if !s.open {
			cancel(errDraining)
		}
		s.running[d] = true
		s.active.Go(func() { handle(handling, d) })
	}
	s.reserved -= g.slots
	if g.slots > 0 {
		s.active.Done()
	}
}

// end frees the slot of a delivery.
func (s *slots) end(d *Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, d)
	d.cancel(nil)
}

// held returns what handlers have, and whether a claim is in flight.
func (s *slots) held() (running []*Delivery, claims bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.running)), s.reserved > 0
}

func (s *slots) change(fields func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fields()
}
