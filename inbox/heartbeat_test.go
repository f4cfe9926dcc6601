package inbox_test

import (
	"testing"
	"time"

	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// TestHeartbeat: the renewal of leases waits for no lock, so that one row that
// somebody holds does not cost a process all its leases, and cannot be part of a
// deadlock.
func TestHeartbeat(t *testing.T) {
	pgtest.Long(t, "it waits for seconds")
	t.Parallel()
	db := pgtest.Open(t)
	ids := []string{"m1", "m2", "m3", "m4"}
	for _, id := range ids {
		put(t, db, id, "key-of-"+id)
	}
	holder, rival := newHung(db, "holder"), newHung(db, "rival")
	const lease = 1500 * time.Millisecond
	first := processor(db, holder.handle)
	first.Policy.Lease = lease
	start(t, first)
	for range ids {
		receiveFrom(t, "a message", holder.begun)
	}
	// A receiver has stopped in the middle of a page that woke the key of m1.
	page := begin(t, db)
	run(t, page, `select from inbox where message_id = 'm1' for no key update`)
	second := processor(db, rival.handle)
	second.Policy.Lease = lease
	start(t, second)
	await(t, db, `select min(received_at) < clock_timestamp() - interval '5 seconds' from inbox`)
	for _, id := range ids {
		r := stored(t, db, id)
		if r.Status != "running" || r.Fence != 1 || r.Attempts != 1 {
			t.Errorf("%s is %s in the hands of holder %d, attempt %d", id, r.Status, r.Fence, r.Attempts)
		}
		if lapsed := r.DueIn < 0; lapsed != (id == "m1") {
			t.Errorf("the lease of %s ends in %s", id, r.DueIn)
		}
	}
	if len(rival.begun) != 0 {
		t.Error("another process has taken something")
	}
	close(rival.finish)
	close(holder.finish)
}

// A lease that a lock kept from being renewed does not have to wait for the next
// third: by then another page may hold the lock.
func TestALeaseIsRenewedAsSoonAsTheLockIsGone(t *testing.T) {
	pgtest.Long(t, "it waits for seconds")
	t.Parallel()
	db := pgtest.Open(t)
	put(t, db, "m1", "k1")
	put(t, db, "m2", "k2")
	holder := newHung(db, "holder")
	p := processor(db, holder.handle)
	p.Policy.Lease = 9 * time.Second
	start(t, p)
	for range 2 {
		receiveFrom(t, "a message", holder.begun)
	}
	end := func(of string) (text string) {
		t.Helper()
		if err := db.QueryRow(t.Context(), `select max(due_at)::text from inbox where message_id like $1`, of).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	claimed, page := end("m%"), begin(t, db)
	run(t, page, `select from inbox where message_id = 'm1' for no key update`)
	await(t, db, `select due_at > '`+claimed+`' from inbox where message_id = 'm2'`)
	renewed := end("m2")
	run(t, page, `commit`)
	await(t, db, `select due_at > '`+claimed+`' from inbox where message_id = 'm1'`)
	if then := end("m2"); then != renewed {
		t.Errorf("it took until the next third: the lease of m2 ended at %s, and now at %s", renewed, then)
	}
	close(holder.finish)
}
