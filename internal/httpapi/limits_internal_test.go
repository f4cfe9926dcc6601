package httpapi

import (
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// TestAdmission_keepsItsBoundsAndReturnsEverySlot: requests of a few merchants enter, and
// panic while they are in.
func TestAdmission_keepsItsBoundsAndReturnsEverySlot(t *testing.T) {
	t.Parallel()
	const most, share, merchants = 12, 5, 4
	a := newCapacity(most, share)
	var ended, refused atomic.Int64
	request := func(merchant string) {
		defer func() {
			if recover() != nil {
				ended.Add(1)
			}
		}()
		leave, err := a.enter(merchant)
		if err != nil {
			refused.Add(1)
			return
		}
		defer leave()
		a.mu.Lock()
		if a.all > most || a.of[merchant] > share {
			t.Errorf("%d are in flight, %d of one merchant", a.all, a.of[merchant])
		}
		a.mu.Unlock()
		runtime.Gosched()
		panic("planted")
	}
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			for range 200 {
				request("m" + strconv.Itoa(i%merchants))
			}
		})
	}
	all.Wait()
	if ended.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d ended, %d were refused", ended.Load(), refused.Load())
	}
	if a.all != 0 || len(a.of) != 0 {
		t.Errorf("%d places and %v are still taken", a.all, a.of)
	}
}
