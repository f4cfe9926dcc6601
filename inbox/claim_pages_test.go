package inbox_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

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
