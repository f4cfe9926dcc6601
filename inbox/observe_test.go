package inbox_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
)

// tally counts what an Observer is told.
type tally struct {
	mu                                  sync.Mutex
	messages, deaths, handling, handled int
	ends                                map[inbox.End]int
}

func (c *tally) observer() inbox.Observer {
	c.ends = map[inbox.End]int{}
	count := func(n *int, by int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		*n += by
	}
	return inbox.Observer{
		Claimed:  func(messages, deaths int) { count(&c.messages, messages); count(&c.deaths, deaths) },
		Handling: func() func() { count(&c.handling, 1); return func() { count(&c.handled, 1) } },
		Ended: func(e inbox.End) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.ends[e]++
		},
	}
}

func (c *tally) ended() map[inbox.End]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.ends)
}

func saying(err error) func(context.Context, *postgres.DB, inbox.Delivery) (inbox.Result, error) {
	return func(context.Context, *postgres.DB, inbox.Delivery) (inbox.Result, error) { return inbox.Complete, err }
}

func TestObserver(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		end    inbox.End
		handle func(ctx context.Context, db *postgres.DB, d inbox.Delivery) (inbox.Result, error)
	}{
		{inbox.EndDone, saying(nil)},
		{inbox.EndDone, func(ctx context.Context, db *postgres.DB, d inbox.Delivery) (inbox.Result, error) {
			return finish(ctx, db, d)
		}},
		{inbox.EndFailed, saying(errors.New("odd"))},
		{inbox.EndFailed, func(context.Context, *postgres.DB, inbox.Delivery) (inbox.Result, error) { panic("odd") }},
		{inbox.EndWaiting, saying(&inbox.WaitError{Err: errors.New("away")})},
		{inbox.EndParked, saying(&inbox.ParkError{Err: errors.New("never")})},
		{inbox.EndLost, func(ctx context.Context, db *postgres.DB, d inbox.Delivery) (inbox.Result, error) {
			if _, err := db.Pool().Exec(ctx, `update inbox set fence = fence + 1`); err != nil {
				return inbox.Complete, err
			}
			return finish(ctx, db, d)
		}},
	} {
		t.Run("an attempt is told that ends "+string(test.end), func(t *testing.T) {
			db := fresh(t, "m1@k")
			told := &tally{}
			p := processor(db, func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) { return test.handle(ctx, db, d) })
			p.Observer = told.observer()
			stop := start(t, p)
			await.True(t, "an end is told", func() bool { return len(told.ended()) > 0 })
			stop()
			if diff := cmp.Diff(map[inbox.End]int{test.end: 1}, told.ended()); diff != "" {
				t.Errorf("ends (-want +got):\n%s", diff)
			}
			if told.messages != 1 || told.deaths != 0 || told.handling != 1 || told.handled != 1 {
				t.Errorf("told: %+v", told)
			}
		})
	}

	t.Run("a message of a dead holder is told", func(t *testing.T) {
		db := fresh(t, "m1@k")
		write(t, db, `update inbox set status = 'running', fence = 1, attempts = 1, due_at = clock_timestamp() - interval '1 day'`)
		told := &tally{}
		p := processor(db, answer(nil))
		p.Policy.BackoffBase, p.Policy.BackoffCap = time.Second, time.Second
		p.Observer = told.observer()
		stop := start(t, p)
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
		stop()
		if told.messages != 1 || told.deaths != 1 || told.ends[inbox.EndDone] != 1 {
			t.Errorf("told: %+v", told)
		}
	})
}
