package inbox_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// renewedLease is a lease whose renewal a test waits for. It is renewed every two
// seconds, and claims and renewals have seconds to come through: a machine that
// stalls for less does not end it.
const renewedLease = 6 * time.Second

// awaitRenewal waits until the lease of a message has been renewed.
func awaitRenewal(t *testing.T, db *postgres.DB, id string) {
	t.Helper()
	end := testdb.One[time.Time](t, db, `select due_at from inbox where message_id = $1`, id)
	await.Row(t, db, `select due_at > $2 from inbox where message_id = $1`, id, end)
}

// TestHeartbeat: a renewal fails, and the next one finds a lease that is free, one
// whose row is locked, one that has ended and one that was taken over.
func TestHeartbeat(t *testing.T) {
	testdb.Long(t, "it waits for a heartbeat")
	t.Parallel()
	url := testdb.URL(t)
	db := testdb.OpenAt(t, url, postgres.Options{})
	for _, id := range []string{"free", "locked", "lapsed", "taken"} {
		put(t, db, id, "key-of-"+id)
	}
	begun, finish, taken := make(chan struct{}, 10), make(chan struct{}), make(chan error, 10)
	renewals := &statements{}
	holder := processor(testdb.OpenAt(t, url, postgres.Options{Tracer: renewals}), func(ctx context.Context, _ *inbox.Delivery) error {
		begun <- struct{}{}
		select {
		case <-finish:
			return nil
		case <-ctx.Done():
			taken <- context.Cause(ctx)
			return ctx.Err()
		}
	})
	holder.Policy.Lease = renewedLease
	failed := &diary{}
	holder.Log = slog.New(slog.NewTextHandler(failed, nil))
	start(t, holder)
	for range 4 {
		await.Receive(t, "a message", begun)
	}
	write(t, db, `create function refuse() returns trigger language plpgsql as $$ begin raise 'planted'; end $$`)
	write(t, db, `create trigger refuse before update on inbox for each row when (old.fence = new.fence) execute function refuse()`)
	failed.await(t, "leases not renewed")
	write(t, db, `drop trigger refuse on inbox`)
	page := lockLapsed(t, db, "locked")
	write(t, db, `update inbox set fence = fence + 1, due_at = clock_timestamp() + interval '1 hour' where message_id = 'taken'`)
	write(t, db, `update inbox set due_at = clock_timestamp() - interval '1 second' where message_id = 'lapsed'`)
	write(t, db, `create table before as select message_id, due_at from inbox`)
	looks := &statements{}
	rival := processor(testdb.OpenAt(t, url, postgres.Options{Tracer: looks}), func(_ context.Context, d *inbox.Delivery) error {
		t.Errorf("another process has taken %s", d.ID)
		return nil
	})
	rival.Holder, rival.Policy.Lease = "rival", renewedLease
	stop := start(t, rival)

	renewed := `select i.due_at > greatest(b.due_at, clock_timestamp()) from inbox i join before b using (message_id) where message_id = `
	await.Row(t, db, renewed+`'free'`)   // the lock of another row costs it nothing
	await.Row(t, db, renewed+`'lapsed'`) // the process still works, and revives it
	if err := await.Receive(t, "the end of the context of what was taken over", taken); err == nil || err.Error() != "the lease was taken over" {
		t.Errorf("the cause is %v", err)
	}
	// Before the next third renews all of them, the locked one is tried individually.
	await.True(t, "the locked lease is tried three times between two heartbeats", func() bool { return renewals.alone.Load() >= 3 })
	heartbeats := renewals.heartbeats.Load()
	await.True(t, "the next heartbeat is due while the row is still locked", func() bool { return renewals.heartbeats.Load() > heartbeats })
	claimed := looks.claims.Load()
	await.True(t, "another process looks for messages", func() bool { return looks.claims.Load() > claimed+2 })
	stop()
	for _, id := range []string{"free", "locked", "lapsed"} {
		if r := stored(t, db, id); r.Status != "running" || r.Fence != 1 || r.Attempts != 1 || r.Holder != "test" {
			t.Errorf("%s is %+v", id, r)
		}
	}
	if r := stored(t, db, "taken"); r.Status != "running" || r.Attempts != 1 {
		t.Errorf("what was taken over is %+v", r)
	}

	testdb.Exec(t, page, `commit`)
	await.Row(t, db, renewed+`'locked'`)
	close(finish)
	await.Row(t, db, `select bool_and(status = 'done' and attempts = 1 and fence = 1) from inbox where message_id <> 'taken'`)
	if n := len(begun) + len(taken); n != 0 {
		t.Errorf("%d handlers more have begun or were interrupted", n)
	}
}

// lockLapsed locks the row of a message whose lease has ended, as a page does that
// wakes its key.
func lockLapsed(t *testing.T, db *postgres.DB, id string) (page pgx.Tx) {
	t.Helper()
	await.True(t, "a lease has ended and its row is locked", func() (lapsed bool) {
		write(t, db, `update inbox set due_at = clock_timestamp() - interval '2 days' where message_id = $1`, id)
		page = testdb.Begin(t, db.Pool(), `select from inbox where message_id = $1 for no key update`, id)
		lapsed = testdb.One[bool](t, page, `select due_at < clock_timestamp() from inbox where message_id = $1`, id)
		if !lapsed { // a heartbeat came in between
			testdb.Exec(t, page, `rollback`)
		}
		return lapsed
	})
	return page
}

// statements counts what a processor sends: claims, also those that take nothing,
// renewals of several leases, and renewals of one lease since the last of these.
type statements struct {
	claims, heartbeats, alone atomic.Int64
}

func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	for _, q := range d.Batch.QueuedQueries {
		if strings.Contains(q.SQL, "(due_at, id) > ($9") {
			s.claims.Add(1)
		}
	}
	return ctx
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if !strings.Contains(d.SQL, "with held as") {
		return ctx
	}
	if ids, ok := d.Args[0].([]int64); ok && len(ids) == 1 {
		s.alone.Add(1)
	} else {
		s.heartbeats.Add(1)
		s.alone.Store(0)
	}
	return ctx
}

func (*statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
