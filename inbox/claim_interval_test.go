package inbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
)

const poll = 100 * time.Millisecond

// soonOnce wants something to be soon done once in several tries: a busy machine is late at
// times, and a processor that is not woken always is, since its timers are never early.
func soonOnce(t *testing.T, soon time.Duration, do func(try int)) {
	t.Helper()
	for try, first := 0, time.Now(); time.Since(first) < await.Stall; try++ {
		began := time.Now()
		do(try)
		if time.Since(began) < soon {
			return
		}
	}
	t.Errorf("it takes %v or more each time", soon)
}

func TestProcessor_claimsAsHandlerSlotsBecomeFree(t *testing.T) {
	t.Parallel()
	done := answer(nil)

	t.Run("a backlog is claimed as handlers come free, a quarter of them at a time", func(t *testing.T) {
		db := fresh(t)
		const messages = 45
		putMany(t, db, `'m' || n`, `'k' || n`, messages)
		var mu sync.Mutex
		var claims []int
		p := processor(db, done)
		p.MinClaimInterval = time.Hour // the test does not wait for it
		p.OnClaim = func(n, _ int) {
			mu.Lock()
			defer mu.Unlock()
			claims = append(claims, n)
		}
		start(t, p)
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
		mu.Lock()
		defer mu.Unlock()
		if last := len(claims) - 1; slices.ContainsFunc(claims[:last], func(n int) bool { return n < 2 }) {
			t.Errorf("of 8 places so many were filled by each claim: %v", claims)
		}
	})

	t.Run("a freed slot waits for others no longer than a poll", func(t *testing.T) {
		db := fresh(t)
		putMany(t, db, `'m' || n`, `'k' || n`, 9)
		finish, ninth := make(chan struct{}), make(chan struct{})
		var once sync.Once
		start(t, processor(db, func(_ context.Context, d *inbox.Delivery) error {
			free := false
			once.Do(func() { free = true }) // one of the eight
			switch {
			case d.ID == "m9":
				close(ninth)
			case !free:
				<-finish
			}
			return nil
		}))
		await.Receive(t, "the ninth message, at the first free place", ninth)
		close(finish)
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
	})

	t.Run("a woken message does not wait for the third poll", func(t *testing.T) {
		db := fresh(t)
		bell := make(chan struct{}, 1)
		p := processor(db, done)
		p.MinClaimInterval, p.Wake = poll, bell
		start(t, p)
		soonOnce(t, 5*poll, func(try int) { // else it is six
			for i := range 2 {
				put(t, db, fmt.Sprint("m", try, i), "k")
				bell <- struct{}{}
				await.Row(t, db, `select bool_and(status = 'done') from inbox`)
			}
		})
	})
}
