package inbox

import (
	"slices"
	"sync"
)

// slots bounds the handlers that run at a time, and how many of them one partition may have:
// about seven eighths of those that the others leave. So a partition that is slow, or sends
// very many messages, leaves slots to others.
type slots struct {
	size int

	mu          sync.Mutex
	used        int
	byPartition map[string]int
	open        bool // the processor runs
	paused      bool
	pausedIn    []string
	running     sync.WaitGroup
}

// take takes free slots for a claim, at most so many. share is how many of them one partition may have, and
// full are the partitions that get none, crowded if that is for want of slots.
func (s *slots) take(most int) (n, share int, full []string, crowded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, full = s.size-s.used, append([]string{}, s.pausedIn...) // never null, which would claim nothing
	if !s.open || s.paused || n <= 0 {
		return 0, 0, nil, false
	}
	for partition, has := range s.byPartition {
		if partition != "" && has >= 7*n {
			full, crowded = append(full, partition), true
		}
	}
	share = max(1, 7*n/8)
	n = min(n, most)
	s.used += n
	s.running.Add(1) // the claim
	return n, share, full, crowded
}

// give returns what a claim took and did not use.
func (s *slots) give(taken int, claimed []*Delivery) {
	if taken == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.running.Done()
	s.used -= taken - len(claimed)
	for _, d := range claimed {
		s.byPartition[d.Partition]++
		s.running.Add(1)
	}
}

func (s *slots) release(partition string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	if s.byPartition[partition]--; s.byPartition[partition] == 0 {
		delete(s.byPartition, partition)
	}
	s.running.Done()
}

// free returns how many slots a claim would have, and whether they are too few for a claim that
// need not hurry.
func (s *slots) free() (n int, few bool) {
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
