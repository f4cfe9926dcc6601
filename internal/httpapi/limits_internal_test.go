package httpapi

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestAdmission_holdsItsBoundsAndReturnsEveryPlace: requests of a few merchants enter, wait
// for a slot, give up while they wait, and panic while they are in.
func TestAdmission_holdsItsBoundsAndReturnsEveryPlace(t *testing.T) {
	t.Parallel()
	const most, share, slots, merchants = 12, 5, 3, 4
	a := newAdmission(most, share, slots)
	var inside, ended, refused, canceled atomic.Int64
	request := func(merchant string) {
		defer func() {
			if recover() != nil {
				ended.Add(1)
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(2000))*time.Microsecond)
		defer cancel()
		leave, err := a.enter(ctx, merchant)
		switch {
		case errors.Is(err, errBusy):
			refused.Add(1)
			return
		case err != nil:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the error is %v", err)
			}
			canceled.Add(1)
			return
		}
		defer leave()
		if n := inside.Add(1); n > slots {
			t.Errorf("%d are in at a time, want %d at most", n, slots)
		}
		a.mu.Lock()
		if a.all > most || a.of[merchant] > share {
			t.Errorf("%d are admitted, %d of one merchant", a.all, a.of[merchant])
		}
		a.mu.Unlock()
		runtime.Gosched()
		inside.Add(-1)
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
		t.Errorf("%d ended, %d were refused, %d gave up", ended.Load(), refused.Load(), canceled.Load())
	}
	if a.all != 0 || len(a.of) != 0 || !a.slots.TryAcquire(slots) {
		t.Errorf("%d places and %v are still taken", a.all, a.of)
	}
}
