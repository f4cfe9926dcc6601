package postgres

import (
	"slices"
	"sync"
	"time"
)

// lanes bring those together who come at the same moment: decisions to one commit,
// questions to one read.
//
// Who comes alone leaves at once. Who comes while others are under way waits for their
// end. Then the first of those who wait leads, and takes the others along. There is no
// goroutine of their own, and nothing to close.
//
// Two rules make more of them share what each would cost alone, where there are many. A
// second lane is used only when enough wait to be worth it, or when the first is slow: who
// waits for a lock holds up nobody but himself. And in busy times, when many have left
// together a moment ago, who comes stays for others: as long as it took those, or until
// enough are together, or no more may leave together. So where processors or disks are
// slow they share more. Such a stay begins anew when many come to their end meanwhile.
type lanes[W comparable] struct {
	enough  int                   // to leave although others are under way, or may come
	longest time.Duration         // that anybody stays for others
	fit     func(waiting []W) int // how many of them may leave together, one at least
	lead    func(all []W)         // tells the first that it leads all of them; must not wait

	mu      sync.Mutex
	all     int           // lanes
	free    int           // that nobody uses
	slow    int           // that somebody uses for longer than slowAfter
	waiting []W           // in the order of their arrival
	staying bool          // those who wait stay for others
	stayed  *time.Timer   // ends it
	busy    bool          // who comes stays
	quiet   *time.Timer   // ends it
	took    time.Duration // what the last who left as many took
}

// open makes so many lanes.
func (l *lanes[W]) open(n int) *lanes[W] {
	l.all, l.free = n, n
	ends := func(what *bool) *time.Timer {
		return time.AfterFunc(0, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			*what = false
			l.leave()
		})
	}
	l.stayed, l.quiet = ends(&l.staying), ends(&l.busy)
	return l
}

// Times are busy for so long behind so many who left together and came to their end.
const (
	busyMany = 8
	busyTime = 200 * time.Millisecond
)

// slowAfter is longer than what is shared takes on a healthy server, and short enough
// for those who wait.
const slowAfter = 25 * time.Millisecond

// join lets w leave, now or later, unless it withdraws. Who is told that it leads uses a
// lane, and in the end, whatever happens, it hands over.
func (l *lanes[W]) join(w W) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, w)
	if len(l.waiting) == 1 {
		l.stay(l.busy)
	}
	l.leave()
}

// stay says whether those who wait stay for others from now on. Its caller holds the
// lock.
func (l *lanes[W]) stay(staying bool) {
	if l.staying = staying; staying {
		l.stayed.Reset(min(l.took, l.longest))
	}
}

// use begins what so many do in a lane, and returns what ends it. It is had back after
// most, also if they are under way still.
func (l *lanes[W]) use(together int, most time.Duration) (handOver func()) {
	var slow, over bool
	began := time.Now() //nolint:forbidigo // how long it takes, which decides nothing but a wait
	slowly := time.AfterFunc(slowAfter, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if slow = !over; slow {
			l.slow++
			l.leave()
		}
	})
	end := func(together int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if over {
			return
		}
		over = true
		if slow {
			l.slow--
		}
		l.handOver(together, time.Since(began)) //nolint:forbidigo // as above
	}
	late := time.AfterFunc(most, func() { end(0) }) // what is held up says nothing of the times
	return func() {
		slowly.Stop()
		late.Stop()
		end(together)
	}
}

// handOver gives a lane back that so many have used for so long. Its caller holds the
// lock.
func (l *lanes[W]) handOver(together int, took time.Duration) {
	l.free++
	if together >= busyMany {
		l.busy, l.took = true, took
		l.quiet.Reset(busyTime)
		l.stay(true)
	}
	l.leave()
}

// leave lets go who may. Its caller holds the lock.
func (l *lanes[W]) leave() {
	for len(l.waiting) > 0 && l.free > 0 {
		n := l.fit(l.waiting)
		full := n < len(l.waiting)
		if len(l.waiting) < l.enough && (l.free+l.slow < l.all || l.staying && !full) {
			return
		}
		all := slices.Clone(l.waiting[:n])
		l.waiting = slices.Delete(l.waiting, 0, n)
		l.free--
		l.lead(all)
	}
}

// withdraw tells whether w still waited, and does no more.
func (l *lanes[W]) withdraw(w W) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, w)
	if i < 0 {
		return false
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	return true
}
