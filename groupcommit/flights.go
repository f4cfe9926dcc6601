package groupcommit

import (
	"sync/atomic"
	"time"
)

// lateAfter is how long a commit may be in flight before it is late. Locks and slow statements
// delay a commit for as long at times, but not each one.
const lateAfter = 3 * time.Second

// flights are the commits that the server has not answered.
type flights struct {
	late      atomic.Int64 // in flight for longer than lateAfter
	confirmed atomic.Int64 // since the start
	stalled   atomic.Bool  // of those that are late, one has seen no other confirmed
}

// begin counts a commit until end is called, with whether the server has confirmed it.
func (f *flights) begin() (end func(confirmed bool)) {
	before := f.confirmed.Load()
	timer := time.AfterFunc(lateAfter, func() {
		f.late.Add(1)
		if f.confirmed.Load() == before {
			f.stalled.Store(true)
		}
	})
	return func(confirmed bool) {
		if confirmed {
			f.confirmed.Add(1)
			f.stalled.Store(false)
		}
		if !timer.Stop() {
			f.late.Add(-1)
		}
	}
}

func (f *flights) areStalled() bool { return f.stalled.Load() && f.late.Load() > 0 }
