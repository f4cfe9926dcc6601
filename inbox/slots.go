package inbox

import (
	"slices"
	"sync"
)

// slots bounds the handlers that run at a time, and how many of them one partition has: a claim
// gives it at most seven eighths of the free slots, and nothing while it has as much of all. So a
// partition that is slow, or has very many messages, leaves slots to others.
type slots struct {
	size int

	mu          sync.Mutex
	used        int // by handlers and by claims in flight
	claiming    int // by claims in flight
	byPartition map[string]int
	open        bool // the processor runs
	paused      bool
	pausedIn    []string
	running     sync.WaitGroup
}

// reservation is what a claim may take.
type reservation struct {
	slots int
	share int      // of one partition
	full  []string // partitions that get none: they have their share, or are paused
}

// share is how many of these slots one partition may have.
func share(slots int) int { return max(1, 7*slots/8) }

// reserve reserves free slots for a claim: all of them for the loop, or at most so many for a page.
// A page gets none while partitions are left out, since its claim would have to look past their
// messages.
func (s *slots) reserve(most int) reservation {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := append([]string{}, s.pausedIn...) // never null, which would claim nothing
	for partition, n := range s.byPartition {
		if partition != "" && n >= share(s.size) {
			full = append(full, partition)
		}
	}
	n := s.size - s.used
	if s.claiming > 0 {
		n-- // the last slot: all others may be of one partition
	}
	if !s.open || s.paused || n <= 0 || most > 0 && len(full) > 0 {
		return reservation{full: full}
	}
	r := reservation{n, share(n), full}
	if most > 0 {
		r.slots = min(n, most)
	}
	s.used += r.slots
	s.claiming += r.slots
	s.running.Add(1) // the claim
	return r
}

// endClaim frees what a claim reserved and did not use.
func (s *slots) endClaim(r reservation, claimed int) {
	if r.slots == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= r.slots - claimed
	s.claiming -= r.slots
	s.running.Done()
}

// isClaiming reports whether claims are in flight, or have not started what they claimed.
func (s *slots) isClaiming() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claiming > 0
}

// handle counts a handler, in a slot that its claim has reserved.
func (s *slots) handle(partition string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byPartition[partition]++
	s.running.Add(1)
}

// release returns the slot of a handler.
func (s *slots) release(partition string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	if s.byPartition[partition]--; s.byPartition[partition] == 0 {
		delete(s.byPartition, partition)
	}
	s.running.Done()
}

// available returns how many slots a claim would have, and whether they are too few for a claim
// that need not hurry.
func (s *slots) available() (n int, few bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = s.size - s.used
	if !s.open || s.paused {
		n = 0
	}
	return n, n < max(1, s.size/4)
}

// setOpen says whether anything starts at all.
func (s *slots) setOpen(open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = open
}

// pause replaces what is paused, and reports whether that changes anything.
func (s *slots) pause(all bool, partitions []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	changes := s.paused != all || !slices.Equal(s.pausedIn, partitions)
	s.paused, s.pausedIn = all, partitions
	return changes
}
