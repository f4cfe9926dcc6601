package inbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
)

type mark struct{}

// TestAttempting: each attempt is told with what the message brought, however often
// it is tried, its handler runs in the context that was given back, and the end is
// told.
func TestAttempting(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	b := &pgx.Batch{}
	m := note("m1", "x")
	m.Metadata = map[string]string{"traceparent": "t1"}
	must(t, inbox.Accept(b, "r", m))
	must(t, db.Commit(t.Context(), b))
	told := &diary{}
	p := processor(db, func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
		told.note("handled:%v", ctx.Value(mark{}))
		switch d.Attempt {
		case 1:
			return inbox.Complete, errors.New("odd")
		case 2:
			panic("odd")
		}
		return inbox.Complete, nil
	})
	p.Policy.BackoffBase, p.Policy.BackoffCap = 1, 1
	p.Observer.Attempting = func(ctx context.Context, d inbox.Delivery) (context.Context, func(inbox.End)) {
		told.note("begun:%d:%s", d.Attempt, d.Metadata["traceparent"])
		return context.WithValue(ctx, mark{}, d.Attempt), func(end inbox.End) { told.note("ended:%s", end) }
	}
	stop := start(t, p)
	await.Row(t, db, `select bool_and(status = 'done') from inbox`)
	stop()
	const want = "begun:1:t1 handled:1 ended:failed begun:2:t1 handled:2 ended:failed begun:3:t1 handled:3 ended:done"
	if told.String() != want {
		t.Errorf("told %q, want %q", told, want)
	}
}

// TestAttemptingIsStillInterrupted: why a handler has to stop is known in the
// context that was given back, too.
func TestAttemptingIsStillInterrupted(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	put(t, db, "m1", "k")
	told := &diary{}
	began := make(chan struct{})
	p := processor(db, func(ctx context.Context, _ inbox.Delivery) (inbox.Result, error) {
		close(began)
		<-ctx.Done()
		return inbox.Complete, context.Cause(ctx)
	})
	p.Drain = 1
	p.Observer.Attempting = func(ctx context.Context, _ inbox.Delivery) (context.Context, func(inbox.End)) {
		return context.WithValue(ctx, mark{}, true), func(end inbox.End) { told.note("%s", end) }
	}
	stop := start(t, p)
	await.Receive(t, "the handler", began)
	stop()
	told.want(t, "released")
}
