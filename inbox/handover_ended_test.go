package inbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// TestPageThatEndsOtherwise: what was told of a page is not taken for what became of
// its transaction, nor the number of a row for the row.
func TestPageThatEndsOtherwise(t *testing.T) {
	pgtest.Long(t, "it waits for seconds")
	t.Parallel()

	t.Run("a commit that comes after it was told of is waited for", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Reused(t)
		var handled diary
		p := unpolled(db, noting(&handled)) // and its lease is an hour
		h := inbox.NewHandover(p)
		hand(t, db, h, func(take takePage) takePage {
			return func(page []*message.Message) error {
				err := take(page)
				h.Ended() // nobody waited for the answer
				for range 100 {
					await.Row(t, db, `select true`) // it is looked for meanwhile
				}
				return err
			}
		}, nil, "r")
		startOffering(t, db, p)
		page(t, db, of("m1=x@k", "m2=x@l")...)
		await.Row(t, db, `select count(*) = 3 and bool_and(status = 'done' and done_fence = 1) from inbox`)
	})

	t.Run("a number that a crash gives away again is not the same row", func(t *testing.T) {
		t.Parallel()
		url := pgtest.URL(t)
		db, narrow := open(t, url, postgres.Options{}), open(t, url, postgres.Options{MaxConns: 1})
		var handled diary
		p := unpolled(narrow, noting(&handled))
		tries := 0
		hand(t, db, inbox.NewHandover(p), func(take takePage) takePage {
			return func(page []*message.Message) error {
				err := take(page)
				if tries++; tries == 1 {
					write(t, db, `select setval(pg_get_serial_sequence('inbox', 'id'), (select max(id) from inbox))`)
					return errors.Join(err, errors.New("planted"))
				}
				return err
			}
		}, nil, "r")
		stop := startOffering(t, db, p)
		conn, err := narrow.Pool().Acquire(t.Context()) // so both pages are looked for together
		if err != nil {
			t.Fatal(err)
		}
		page(t, db, letter("m1", "x"))
		awaitReceived(t, db)
		conn.Release()
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
		stop()
		if got := handled.String(); got != "m1" || tries != 2 {
			t.Errorf("handled: %s; after %d pages", got, tries)
		}
	})

	t.Run("what is claimed again while it is looked for keeps its lease", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Open(t)
		begun, finish := make(chan int64, 10), map[int64]chan struct{}{1: make(chan struct{}), 2: make(chan struct{})}
		p := processor(db, func(_ context.Context, d inbox.Delivery) (inbox.Result, error) {
			if d.ID != "first" {
				n := int64(d.Attempt)
				begun <- n
				<-finish[n]
			}
			return inbox.Complete, nil
		})
		p.Policy.Lease = renewedLease
		h := inbox.NewHandover(p)
		hand(t, db, h, nil, func() {}, "r") // nobody tells before the lease has ended
		startOffering(t, db, p)
		write(t, db, `create function held_up() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock_shared(7); return new; end $$`)
		write(t, db, `create trigger held_up before update on inbox for each row when (new.fence = 2) execute function held_up()`)
		tx := begin(t, db)
		run(t, tx, `select pg_advisory_xact_lock(7)`)
		page(t, db, letter("m1", "x"))
		awaitReceived(t, db)
		silence(t, db)
		await.Row(t, db, `select count(*) > 0 from pg_stat_activity where datname = current_database() and wait_event = 'advisory'`)
		h.Ended()
		if n := await.Receive(t, "what was taken on receipt", begun); n != 1 {
			t.Errorf("attempt %d comes first", n)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := await.Receive(t, "what was claimed", begun); n != 2 {
			t.Errorf("attempt %d comes second", n)
		}
		close(finish[1])
		awaitRenewal(t, db, "m1")
		if r := stored(t, db, "m1"); r.Status != "running" || r.Fence != 2 {
			t.Errorf("it is %+v", r)
		}
		close(finish[2])
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
	})
}
