package inbox

import (
	"context"
	"maps"
	"sync"
	"time"
)

// slots bounds the handlers that run at a time, and how many of them one partition may
// have: it takes slots up to seven eighths of those that the other partitions leave at that
// moment, and always a first one if one is free. Of 64 slots a partition takes 56, beside it a
// second one 7, and a third one the last. So a partition that is slow, or sends very many messages,
// leaves slots to others.
type slots struct {
	size int

	mu          sync.Mutex
	used        int                        // by handlers, pages and the claim in progress
	claiming    int                        // by that claim, for messages that it may not find
	byPartition map[string]int             // used slots whose message is known
	heldBack    map[string]partitionCursor // partitions of which messages are held back
	dueFirst    bool                       // due messages wait for slots, or nothing runs: pages get none
	paused      bool                       // no message starts
	pausedIn    map[string]bool            // partitions of which none starts
	changed     chan struct{}              // closed at the next change
}

// partitionCursor is the row behind which the next claim reads what is held back of a
// partition. While it is active, each claim reads behind the window of the last one.
type partitionCursor struct {
	row    int64
	active bool
}

func newSlots(size int) *slots {
	return &slots{size: size, byPartition: map[string]int{}, heldBack: map[string]partitionCursor{}, dueFirst: true, changed: make(chan struct{})}
}

// share is how many more slots a partition may take that has some of them.
func share(free, has int) int {
	more := max(0, 7*free-has) / 8
	if has == 0 {
		more = max(more, min(free, 1))
	}
	return more
}

// shareLocked is how many more slots a partition may take.
func (s *slots) shareLocked(free int, partition string) int {
	if s.pausedIn[partition] {
		return 0
	}
	return share(free, s.byPartition[partition])
}

// reserve takes a slot for a message of a page. If only the partition's share refuses it,
// the message is held back.
func (s *slots) reserve(partition string) (reserved, heldBack bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.size - s.used
	if s.dueFirst || s.paused || free <= 0 {
		return false, false
	}
	if partition != "" && s.shareLocked(free, partition) == 0 {
		if _, known := s.heldBack[partition]; !known {
			s.heldBack[partition] = partitionCursor{}
		}
		return false, true
	}
	s.used++
	s.byPartition[partition]++
	return true, false
}

// release returns the slot of a message.
func (s *slots) release(partition string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	if s.byPartition[partition]--; s.byPartition[partition] == 0 {
		delete(s.byPartition, partition)
	}
	s.changedLocked()
}

// takeForClaim waits for slots and takes those of a claim, whose messages are not known yet:
// all free ones while due messages wait for slots, else half of them, at most minSlots, since
// the rest is for pages. It returns 0 when ctx has ended.
func (s *slots) takeForClaim(ctx context.Context, poll time.Duration) (taken int) {
	for taken == 0 && s.wait(ctx, poll, false) {
		s.mu.Lock()
		if !s.paused {
			taken = s.size - s.used
		}
		if !s.dueFirst {
			taken = min((taken+1)/2, s.minSlots())
		}
		s.used, s.claiming = s.used+taken, taken
		s.mu.Unlock()
	}
	return taken
}

// assign gives slots of a claim to the messages that it has claimed.
func (s *slots) assign(messages []*Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claiming -= len(messages)
	for _, d := range messages {
		s.byPartition[d.Partition]++
	}
}

// releaseUnused returns the slots that a claim did not use.
func (s *slots) releaseUnused(unused int, dueFirst bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used, s.claiming = s.used-unused, 0
	s.dueFirst = dueFirst
	s.changedLocked()
}

// shares returns how many of the free slots and of n that a claim has each of these
// partitions may take, and any partition that is not among them.
func (s *slots) shares(n int) (partitions []string, shares []int, others int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.size - s.used + n
	for partition := range s.byPartition {
		partitions, shares = append(partitions, partition), append(shares, s.shareLocked(free, partition))
	}
	for partition := range s.pausedIn {
		if s.byPartition[partition] == 0 {
			partitions, shares = append(partitions, partition), append(shares, 0)
		}
	}
	return partitions, shares, share(free, 0)
}

// heldBackShares returns at most n partitions of which messages are held back, the row
// numbers above which they are, and how many slots each may take.
func (s *slots) heldBackShares(n int) (partitions []string, above []int64, shares []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.size - s.used + n
	for partition, p := range s.heldBack {
		if more := s.shareLocked(free, partition); more > 0 && len(partitions) < n {
			partitions, above, shares = append(partitions, partition), append(above, p.row), append(shares, more)
		}
	}
	return partitions, above, shares
}

// setHeldBack sets the partitions of which messages are held back.
func (s *slots) setHeldBack(partitions []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.heldBack
	s.heldBack = make(map[string]partitionCursor, len(partitions))
	for _, partition := range partitions {
		s.heldBack[partition] = partitionCursor{}
		if p := before[partition]; p.active {
			s.heldBack[partition] = p
		}
	}
}

// holdBack notes that messages are held back. Those up to row were claimed or skipped.
func (s *slots) holdBack(partition string, row int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.heldBack[partition]
	p.row = max(p.row, row)
	s.heldBack[partition] = p
}

// advance moves the cursor of a partition: a claim found fewer messages than it could take,
// and skipped those up to row. 0 ends the scan.
func (s *slots) advance(partition string, row int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if row > 0 || s.heldBack[partition].active {
		s.heldBack[partition] = partitionCursor{row, row > 0}
	}
}

// ended says that a message has ended, behind which a claim may have skipped a later
// one of its key. It returns false if none of its partition is held back.
func (s *slots) ended(d *Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, heldBack := s.heldBack[d.Partition]
	if heldBack && !p.active {
		s.heldBack[d.Partition] = partitionCursor{row: min(p.row, d.row)}
	}
	return heldBack
}

func (s *slots) holdsBack() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.heldBack) > 0
}

func (s *slots) isScanning() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for partition, p := range s.heldBack {
		if p.active && !s.pausedIn[partition] {
			return true
		}
	}
	return false
}

// pause replaces what is paused, and reports whether that changes anything.
func (s *slots) pause(all bool, partitions []string) bool {
	pausedIn := map[string]bool{}
	for _, partition := range partitions {
		pausedIn[partition] = partition != ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused == all && maps.Equal(s.pausedIn, pausedIn) {
		return false
	}
	s.paused, s.pausedIn = all, pausedIn
	s.changedLocked()
	return true
}

func (s *slots) changedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// minSlots is the smallest number of slots that is worth a transaction of its own. Under
// saturation slots become free one at a time.
func (s *slots) minSlots() int { return max(1, s.size/4) }

// wait waits until minSlots slots are free, or until one has been free for so long. A page also
// waits until no due message waits for slots, and a claim for a single slot only while none
// does. For a page the slots that the claim in progress has not used count as free: claims may
// follow each other without a gap. wait returns false when ctx has ended.
func (s *slots) wait(ctx context.Context, atMost time.Duration, page bool) bool {
	usable := func() bool {
		if page {
			return s.used-s.claiming < s.size && !s.paused && !s.dueFirst
		}
		return s.used < s.size && !s.paused
	}
	if s.until(ctx.Done(), nil, usable) {
		s.until(ctx.Done(), time.After(atMost), func() bool {
			return usable() && (s.size-s.used >= s.minSlots() || !page && !s.dueFirst)
		})
	}
	return ctx.Err() == nil
}

// until waits until a condition is met, and returns false if one of the channels is first.
func (s *slots) until(done <-chan struct{}, late <-chan time.Time, met func() bool) bool {
	for {
		s.mu.Lock()
		is, changed := met(), s.changed
		s.mu.Unlock()
		if is {
			return true
		}
		select {
		case <-changed:
		case <-late:
			return false
		case <-done:
			return false
		}
	}
}

// waitForAll waits until no slot is used, and returns false if that takes too long.
func (s *slots) waitForAll(late <-chan time.Time) bool {
	return s.until(nil, late, func() bool { return s.used == 0 })
}

const (
	pageWait     = 5 * time.Millisecond // for minSlots slots, where one is free
	heldBackPage = 500
)

// Capacity waits until the processor has free slots, and returns how many messages the next
// page may bring: they can start at once. It is meant for outbox.Options. It returns 0 when
// ctx has ended, and waits while due messages need the slots. While messages of a partition
// are held back, a page may bring more messages, since many of them may stand before those
// of other partitions. Beside a claim that has the last slots it returns 1.
func (p *Processor) Capacity(ctx context.Context) int {
	r, _ := p.state() // Run and Consume report what is wrong
	s := r.slots
	if !s.wait(ctx, pageWait, true) {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.heldBack) > 0 && s.used < s.size {
		return max(s.size-s.used, heldBackPage)
	}
	return max(1, s.size-s.used)
}
