package inbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func TestPace(t *testing.T) {
	t.Parallel()
	done := func(_ context.Context, _ inbox.Delivery) (inbox.Result, error) { return inbox.Complete, nil }

	t.Run("a backlog is claimed as handlers come free, a quarter of them at a time", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		const messages = 45
		for i := range messages {
			put(t, db, fmt.Sprint("m", i), fmt.Sprint("k", i))
		}
		var mu sync.Mutex
		var claims []int
		p := processor(db, done)
		p.Poll = time.Hour // nobody waits for it
		p.Observer.Claimed = func(n, _ int) {
			mu.Lock()
			defer mu.Unlock()
			claims = append(claims, n)
		}
		start(t, p)
		await(t, db, `select bool_and(status = 'done') from inbox`)
		mu.Lock()
		defer mu.Unlock()
		if last := len(claims) - 1; slices.ContainsFunc(claims[:last], func(n int) bool { return n < 2 }) {
			t.Errorf("of 8 places so many were filled by each claim: %v", claims)
		}
	})

	t.Run("a place that comes free waits for others no longer than a poll", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		for i := range 9 {
			put(t, db, fmt.Sprint("m", i), fmt.Sprint("k", i))
		}
		finish, ninth := make(chan struct{}), make(chan struct{})
		var once sync.Once
		start(t, processor(db, func(_ context.Context, d inbox.Delivery) (inbox.Result, error) {
			free := false
			once.Do(func() { free = true }) // one of the eight
			switch {
			case d.ID == "m8":
				close(ninth)
			case !free:
				<-finish
			}
			return inbox.Complete, nil
		}))
		receiveFrom(t, "the ninth message, at the first free place", ninth)
		close(finish)
		await(t, db, `select bool_and(status = 'done') from inbox`)
	})

	t.Run("who is woken does not wait for the third poll", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		const poll = time.Second
		bell := make(chan struct{}, 1)
		p := processor(db, done)
		p.Poll, p.Wake = poll, bell
		start(t, p)
		put(t, db, "m1", "k")
		bell <- struct{}{}
		began := time.Now()
		await(t, db, `select status = 'done' from inbox`)
		put(t, db, "m2", "k")
		bell <- struct{}{}
		await(t, db, `select bool_and(status = 'done') from inbox`)
		if took := time.Since(began); took >= 5*poll { // else each waits for three
			t.Errorf("two messages took %v", took)
		}
	})

	t.Run("who is not, comes by itself", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		p := processor(db, done)
		p.Wake = make(chan struct{})
		start(t, p)
		put(t, db, "m1", "k")
		await(t, db, `select status = 'done' from inbox`)
		put(t, db, "m2", "k")
		await(t, db, `select bool_and(status = 'done') from inbox`)
	})
}
