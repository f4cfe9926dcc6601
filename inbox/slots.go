package inbox

import (
	"context"
	"maps"
	"sync"
	"time"
)

// slots bounds the handlers that run at a time, and how many of them one partition may
// have. A partition takes another slot only while it would hold at most seven times as
// many as stay free: a partition of 64 slots holds 56, beside it a second one 7. So a
// partition that is slow, or sends very many messages, leaves slots to every other one,
// without a list of partitions and without a setting.
type slots struct {
	size int

	mu          sync.Mutex
	used        int
	byPartition map[string]int // used slots whose message is known
	dueFirst    bool           // due messages wait for slots, or nothing runs: pages get none
	changed     chan struct{}  // closed at the next change; nil while nothing waits for it
}

// share is how many more slots a partition may take that has some of them.
func share(free, has int) int {
	more := max(0, 7*free-has) / 8
	if has == 0 {
		more = max(more, min(free, 1))
	}
	return more
}

// take takes at most n slots, for messages that are not known yet.
func (s *slots) take(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = max(0, min(n, s.size-s.used))
	s.used += n
	return n
}

// give returns slots that no message has.
func (s *slots) give(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
	s.change()
}

// assign says which partition has a slot that was taken.
func (s *slots) assign(partition string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byPartition[partition]++
}

// takeFor takes a slot for a message of a partition. held says that only the partition's
// share refused it.
func (s *slots) takeFor(partition string) (taken, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.size - s.used
	if s.dueFirst || free <= 0 {
		return false, false
	}
	if partition != "" && share(free, s.byPartition[partition]) == 0 {
		return false, true
	}
	s.used++
	s.byPartition[partition]++
	return true, false
}

// leave returns the slot of a message.
func (s *slots) leave(partition string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	if s.byPartition[partition]--; s.byPartition[partition] == 0 {
		delete(s.byPartition, partition)
	}
	s.change()
}

// room returns how many of the free slots and of n that are taken for a claim each of
// these partitions may have, and any partition that is not among them. The claim has
// claimed some messages already.
func (s *slots) room(n int, already []claimed) (partitions []string, rooms []int, others int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.size - s.used + n - len(already)
	used := maps.Clone(s.byPartition)
	for _, c := range already {
		used[c.Partition]++
	}
	for partition, has := range used {
		partitions, rooms = append(partitions, partition), append(rooms, share(free, has))
	}
	return partitions, rooms, share(free, 0)
}

func (s *slots) setDueFirst(first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dueFirst != first {
		s.dueFirst = first
		s.change()
	}
}

// change wakes everything that waits; s.mu is held.
func (s *slots) change() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// state returns the number of free slots, whether pages get none of them, and what is
// closed at the next change.
func (s *slots) state() (free int, dueFirst bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.size - s.used, s.dueFirst, s.changed
}

// few is the smallest number of slots that is worth a transaction of its own. Under
// saturation slots become free one at a time.
func (s *slots) few() int { return max(1, s.size/4) }

// wait waits until few slots are free, or until one has been free for a while. Pages also
// wait until no due message waits for slots. It returns false when ctx ended first.
func (s *slots) wait(ctx context.Context, while time.Duration, page bool) bool {
	var late <-chan time.Time
	for ctx.Err() == nil {
		free, dueFirst, changed := s.state()
		usable := free > 0 && (!page || !dueFirst)
		if usable && free >= s.few() {
			return true
		}
		if usable && late == nil {
			late = time.After(while)
		}
		select {
		case <-changed:
		case <-late:
			return true
		case <-ctx.Done():
		}
	}
	return false
}

const (
	pageWait     = 5 * time.Millisecond // for few slots, where one is free
	heldBackPage = 500
)

// Room waits until the processor has free slots, and returns how many messages the next
// page may bring: they can start at once. It returns 0 when ctx has ended. While due
// messages wait for slots there is no room. While messages of a partition are held back,
// a page may bring more, since many of them may stand before those of other partitions.
func (p *Processor) Room(ctx context.Context) int {
	r := p.state()
	if !r.slots.wait(ctx, pageWait, true) {
		return 0
	}
	free, _, _ := r.slots.state()
	if r.holdsBack() {
		return max(free, heldBackPage)
	}
	return max(1, free)
}
