package inbox_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

const poll = 100 * time.Millisecond

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
		await.Soon(t, 5*poll, func(try int) { // else it is six
			for i := range 2 {
				put(t, db, fmt.Sprint("m", try, i), "k")
				bell <- struct{}{}
				await.Row(t, db, `select bool_and(status = 'done') from inbox`)
			}
		})
	})
}

// slowClaims is a database in which claims do not end until end, but for the first.
type slowClaims struct {
	*postgres.DB

	begun atomic.Int64
	end   chan struct{}
}

func (d *slowClaims) Commit(ctx context.Context, b *pgx.Batch) error {
	for _, q := range b.QueuedQueries {
		if strings.Contains(q.SQL, "), claimed as (") && d.begun.Add(1) > 4 {
			<-d.end
		}
	}
	return d.DB.Commit(ctx, b)
}

// Claims may follow each other without a gap. A page is stored beside one that has the only
// slot.
func TestConsume_doesNotWaitForAClaim(t *testing.T) {
	t.Parallel()
	db, b, handled := &slowClaims{DB: testdb.Reused(t), end: make(chan struct{})}, &broker{log: logOf("a", "b"), one: true}, &diary{}
	p := processor(db.DB, noting(handled))
	p.DB, p.Concurrency = db, 1
	start(t, p)
	defer close(db.end)
	await.True(t, "a claim does not end", func() bool { return db.begun.Load() > 4 })
	consume(t, p, inbox.Source{Subscriber: b})
	b.awaitAcks(t, 2)
	await.Row(t, db.DB, `select count(*) = 2 from inbox where status = 'pending'`)
	handled.want(t, "")
}

func TestClaim_startsWithTheOldest(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	for _, id := range []string{"c", "a", "d", "b"} { // each under a key of its own
		put(t, db, id, id)
	}
	var order diary
	p := processor(db, noting(&order))
	p.Concurrency = 1
	start(t, p)
	await.Row(t, db, `select bool_and(status = 'done') from inbox`)
	order.want(t, "c a d b")
}
