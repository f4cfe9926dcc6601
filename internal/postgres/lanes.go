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
// waits for a lock holds up nobody but himself. And where the last had company, more will
// come: so whoever is next, also one alone, stays behind its end for as long as others
// keep coming, or until enough are together, or no more may leave together. Where few are
// about that is a lull; where many are it is up to the longest stay, which buys fewer
// commits with latency.
type lanes[W comparable] struct {
	enough  int                   // to leave although others are under way, or were a moment ago
	longest time.Duration         // that anybody stays behind those who had company
	fit     func(waiting []W) int // how many of them may leave together, one at least
	lead    func(all []W)         // tells the first that it leads all of them; must not wait

	mu      sync.Mutex
	all     int         // lanes
	free    int         // that nobody uses
	slow    int         // that somebody uses for longer than slowAfter
	waiting []W         // in the order of their arrival
	early   bool        // some with company gave a lane back, and others keep coming
	lulled  *time.Timer // ends early, when nobody comes
	stayed  *time.Timer // ends early, whoever comes
}

// open makes so many lanes.
func (l *lanes[W]) open(n int) *lanes[W] {
	l.all, l.free = n, n
	late := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.early = false
		l.leave()
	}
	l.lulled, l.stayed = time.AfterFunc(0, late), time.AfterFunc(0, late)
	return l
}

// Behind those who had company the next one stays until nobody has come for a lull.
const lull = 3 * time.Millisecond

// slowAfter is longer than what is shared takes on a healthy server, and short enough
// for those who wait.
const slowAfter = 25 * time.Millisecond

// join lets w leave, now or later, unless it withdraws. Who is told that it leads uses a
// lane, and in the end, whatever happens, it hands over.
func (l *lanes[W]) join(w W) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, w)
	if l.early {
		l.lulled.Reset(lull)
	}
	l.leave()
}

// use begins what so many do in a lane, and returns what ends it. It is had back after
// most, also if they are under way still.
func (l *lanes[W]) use(together int, most time.Duration) (handOver func()) {
	var slow, over bool
	slowly := time.AfterFunc(slowAfter, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if slow = !over; slow {
			l.slow++
			l.leave()
		}
	})
	end := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if over {
			return
		}
		over = true
		if slow {
			l.slow--
		}
		l.handOver(together)
	}
	late := time.AfterFunc(most, end)
	return func() {
		slowly.Stop()
		late.Stop()
		end()
	}
}

// handOver gives a lane back that so many have used. Its caller holds the lock.
func (l *lanes[W]) handOver(together int) {
	l.free++
	if together > 1 {
		l.early = true
		l.lulled.Reset(lull)
		l.stayed.Reset(l.longest)
	}
	l.leave()
}

// leave lets go who may. Its caller holds the lock.
func (l *lanes[W]) leave() {
	for len(l.waiting) > 0 && l.free > 0 {
		n := l.fit(l.waiting)
		full := n < len(l.waiting)
		if len(l.waiting) < l.enough && (l.free+l.slow < l.all || l.early && !full) {
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
