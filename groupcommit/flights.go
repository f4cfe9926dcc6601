package groupcommit

import (
	"sync"
	"time"
)

// lateAfter is how long a commit may be in flight, and no other one be confirmed, before it is
// late. Locks and slow statements delay a commit for as long at times, but not each one.
const lateAfter = 3 * time.Second

// flights are the commits that the server has not answered.
type flights struct {
	mu    sync.Mutex
	n     int
	since time.Time // when the last one was confirmed, or the first of these began
}

// add counts commits that begin, or that end.
func (f *flights) add(n int, confirmed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == 0 || confirmed {
		f.since = time.Now() //nolint:forbidigo // it decides only what is reported
	}
	f.n += n
}

// late is how many are in flight, if none was confirmed for lateAfter.
func (f *flights) late() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.since) < lateAfter { //nolint:forbidigo // as above
		return 0
	}
	return int64(f.n)
}
