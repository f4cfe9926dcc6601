package outbox_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
)

// overheard keeps the query by which a subscriber reads a page.
type overheard struct {
	mu    sync.Mutex
	query string
	args  []any
	polls int
}

func (o *overheard) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "from outbox_offsets") {
		o.mu.Lock()
		o.query, o.args = q.SQL, q.Args
		o.polls++
		o.mu.Unlock()
	}
	return ctx
}

func (o *overheard) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.polls
}

func (o *overheard) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestPoll_writesNothingWhileIdle(t *testing.T) {
	testdb.Long(t, "it polls for a while")
	t.Parallel()
	db := testdb.Open(t)
	r := read(t, db, "g")
	await.True(t, "the subscriber polls", func() bool { return r.polls.count() > 2 })
	r.stop()
	took := func() (id *uint64) {
		tx, err := db.Pool().Begin(t.Context())
		testdb.Must(t, err)
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		rows, err := tx.Query(t.Context(), r.polls.query, r.polls.args...)
		testdb.Must(t, err)
		rows.Close()
		testdb.Must(t, rows.Err())
		testdb.Must(t, tx.QueryRow(t.Context(), `select pg_current_xact_id_if_assigned()`).Scan(&id))
		return id
	}
	if id := took(); id != nil {
		t.Errorf("a poll of an empty outbox took the transaction id %d", *id)
	}
	publish(t, db, "m1")
	await.True(t, "a poll that finds a message locks the offset, and so takes a transaction id", func() bool { return took() != nil })
	read(t, db, "g").wantNext(t, "m1")
	await.True(t, "once it is read, polls take none again", func() bool { return took() == nil })
}
