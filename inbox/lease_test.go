package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// hung is a handler that holds what it gets until it is let go, and then tries
// to finish it together with an effect.
type hung struct {
	db     *postgres.DB
	name   string // of the effect
	begun  chan inbox.Delivery
	finish chan struct{}
	ended  chan error // of the commit
}

func newHung(db *postgres.DB, name string) *hung {
	return &hung{
		db: db, name: name,
		begun: make(chan inbox.Delivery, 10), finish: make(chan struct{}), ended: make(chan error, 10),
	}
}

func (h *hung) handle(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
	h.begun <- d
	<-h.finish // it does not hear that its context has ended
	b := &pgx.Batch{}
	effect(b, h.name)
	inbox.Done(b, d)
	err := h.db.Commit(ctx, b)
	h.ended <- err
	return inbox.Completed, err
}

func TestLease(t *testing.T) {
	t.Parallel()

	t.Run("a message of a silent holder is taken over, and the holder loses its whole commit", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		put(t, db, "m1", "k")
		zombie, heir := newHung(db, "of-the-zombie"), newHung(db, "of-the-heir")
		close(heir.finish)
		start(t, processor(db, zombie.handle))
		if d := await.Receive(t, "the first holder", zombie.begun); d.Attempt != 1 {
			t.Errorf("attempt %d", d.Attempt)
		}
		silence(t, db)
		second := processor(db, heir.handle)
		second.Holder = "heir"
		start(t, second)
		if d := await.Receive(t, "the second holder", heir.begun); d.Attempt != 2 {
			t.Errorf("attempt %d, want 2: the silent one counts", d.Attempt)
		}
		if err := await.Receive(t, "its commit", heir.ended); err != nil {
			t.Fatal(err)
		}
		close(zombie.finish)
		if err := await.Receive(t, "the zombie's commit", zombie.ended); !inbox.IsLost(err) {
			t.Errorf("the zombie's commit ended with %v, want a lost lease", err)
		}
		wantEffects(t, db, "of-the-heir")
		if r := stored(t, db, "m1"); r.Status != "done" || r.Fence != 2 || *r.DoneFence != 2 || r.Holder != "heir" {
			t.Errorf("the message is %+v", r)
		}
	})

	t.Run("the holder loses also while its heir still works", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		put(t, db, "m1", "k")
		zombie, heir := newHung(db, "of-the-zombie"), newHung(db, "of-the-heir")
		start(t, processor(db, zombie.handle))
		await.Receive(t, "the first holder", zombie.begun)
		silence(t, db)
		start(t, processor(db, heir.handle))
		await.Receive(t, "the second holder", heir.begun)
		close(zombie.finish)
		if err := await.Receive(t, "the zombie's commit", zombie.ended); !inbox.IsLost(err) {
			t.Errorf("the zombie's commit ended with %v, want a lost lease", err)
		}
		wantEffects(t, db)
		close(heir.finish)
		if err := await.Receive(t, "the heir's commit", heir.ended); err != nil {
			t.Error(err)
		}
		wantEffects(t, db, "of-the-heir")
	})

	t.Run("who failed after he was taken over changes nothing", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		put(t, db, "m1", "k")
		begun, fail := make(chan struct{}), make(chan struct{})
		heir := newHung(db, "of-the-heir")
		stop := start(t, processor(db, func(context.Context, inbox.Delivery) (inbox.Result, error) {
			close(begun)
			<-fail
			return inbox.Complete, &inbox.ParkError{Err: errors.New("of the zombie")}
		}))
		await.Receive(t, "the first holder", begun)
		silence(t, db)
		start(t, processor(db, heir.handle))
		await.Receive(t, "the second holder", heir.begun)
		close(fail)
		stop()
		if r := stored(t, db, "m1"); r.Status != "running" || r.Fence != 2 || r.LastError != "" {
			t.Errorf("the message is %+v", r)
		}
		close(heir.finish)
		await.Row(t, db, `select status = 'done' from inbox`)
	})

	t.Run("a message whose holders all went silent is parked and not handled again", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		put(t, db, "m1", "k")
		write(t, db, `update inbox set status = 'running', attempts = 12, deaths = 11, fence = 12`)
		silence(t, db)
		start(t, processor(db, func(context.Context, inbox.Delivery) (inbox.Result, error) {
			t.Error("it was handled")
			return inbox.Complete, nil
		}))
		await.Row(t, db, `select status = 'dead' and deaths = 12 and last_error = '12 holders died or went silent' from inbox`)
	})

	t.Run("how many holders may go silent is a policy", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		put(t, db, "m1", "k")
		write(t, db, `update inbox set status = 'running', attempts = 1, fence = 1`)
		silence(t, db)
		p := processor(db, func(context.Context, inbox.Delivery) (inbox.Result, error) {
			t.Error("it was handled")
			return inbox.Complete, nil
		})
		p.Policy.MaxDeaths = 1
		start(t, p)
		await.Row(t, db, `select status = 'dead' and last_error = '1 holders died or went silent' from inbox`)
	})

	for name, answer := range map[string]struct {
		err  error
		want string
	}{
		"an error":  {errors.New("no"), `select status = 'pending' and attempts = 1 and deaths = 0 from inbox`},
		"a wait":    {&inbox.WaitError{AtLeast: time.Hour, Err: errors.New("no")}, `select status = 'pending' and attempts = 0 and deaths = 0 from inbox`},
		"a success": {nil, `select status = 'done' and attempts = 12 and deaths = 11 from inbox`},
	} {
		t.Run(name+" of a holder clears the message of the deaths before", func(t *testing.T) {
			t.Parallel()
			db := testdb.Reused(t)
			put(t, db, "m1", "k")
			write(t, db, `update inbox set status = 'running', attempts = 11, deaths = 10, fence = 11`)
			silence(t, db)
			start(t, processor(db, func(context.Context, inbox.Delivery) (inbox.Result, error) {
				return inbox.Complete, answer.err
			}))
			await.Row(t, db, answer.want)
		})
	}

	t.Run("a heartbeat keeps the message of a handler that works for longer than a lease", func(t *testing.T) {
		testdb.Long(t, "it waits for a lease")
		t.Parallel()
		db := testdb.Reused(t)
		put(t, db, "m1", "k")
		h := newHung(db, "of-the-patient")
		p := processor(db, h.handle)
		p.Policy.Lease = renewedLease
		start(t, p)
		await.Receive(t, "the holder", h.begun)
		rival := processor(db, func(context.Context, inbox.Delivery) (inbox.Result, error) {
			t.Error("it was taken from a holder that lives")
			return inbox.Complete, nil
		})
		rival.Policy.BackoffBase, rival.Policy.BackoffCap = 10*time.Second, 10*time.Second // a part of it is for a machine that stalls
		start(t, rival)
		awaitRenewal(t, db, "m1")
		close(h.finish)
		if err := await.Receive(t, "its commit", h.ended); err != nil {
			t.Error(err)
		}
		wantEffects(t, db, "of-the-patient")
	})

	t.Run("who finishes twice finishes once", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		put(t, db, "m1", "k")
		errs := make(chan error, 2)
		start(t, processor(db, func(ctx context.Context, d inbox.Delivery) (inbox.Result, error) {
			for range 2 { // the first answer was lost
				b := &pgx.Batch{}
				inbox.Done(b, d)
				errs <- db.Commit(ctx, b)
			}
			return inbox.Completed, nil
		}))
		for range 2 {
			if err := await.Receive(t, "a commit", errs); err != nil {
				t.Error(err)
			}
		}
		await.Row(t, db, `select status = 'done' and done_fence = 1 from inbox`)
	})

	t.Run("only a refused fence is a lost lease", func(t *testing.T) {
		t.Parallel()
		for _, err := range []error{nil, errors.New("something"), postgres.ErrUnknown} {
			if inbox.IsLost(err) {
				t.Errorf("%v is taken for a lost lease", err)
			}
		}
	})
}

func wantEffects(t *testing.T, db *postgres.DB, want ...string) {
	t.Helper()
	rows, err := db.Query(t.Context(), `select merchant_id from merchants order by 1`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) || len(want) == 1 && got[0] != want[0] {
		t.Errorf("effects %v, want %v", got, want)
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()

	t.Run("a handler that is at work when the program stops may finish", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		put(t, db, "m1", "k")
		put(t, db, "m2", "k")
		begun, finish := make(chan struct{}, 2), make(chan struct{})
		p := processor(db, func(ctx context.Context, _ inbox.Delivery) (inbox.Result, error) {
			begun <- struct{}{}
			<-finish
			return inbox.Complete, ctx.Err()
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { p.Run(ctx); close(ended) }()
		await.Receive(t, "the handler", begun)
		cancel()
		close(finish)
		await.Receive(t, "the processor's end", ended)
		if first, second := stored(t, db, "m1"), stored(t, db, "m2"); first.Status != "done" || second.Status != "pending" || second.Attempts != 0 {
			t.Errorf("the message at work is %+v, the one behind it %+v", first, second)
		}
	})

	t.Run("what does not finish in time is given back at once, and no attempt is counted", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		put(t, db, "m1", "k")
		begun := make(chan struct{})
		cause := make(chan error, 1)
		p := processor(db, func(ctx context.Context, _ inbox.Delivery) (inbox.Result, error) {
			close(begun)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return inbox.Complete, ctx.Err()
		})
		p.Drain = 20 * time.Millisecond
		stop := start(t, p)
		await.Receive(t, "the handler", begun)
		stop()
		if err := await.Receive(t, "the end of its context", cause); err == nil || err.Error() != "the program stops" {
			t.Errorf("the cause is %v", err)
		}
		if r := stored(t, db, "m1"); r.Status != "pending" || r.Attempts != 0 || r.DueIn > 0 {
			t.Errorf("the message is %+v", r)
		}
		start(t, processor(db, func(_ context.Context, d inbox.Delivery) (inbox.Result, error) {
			if d.Attempt != 1 {
				t.Errorf("attempt %d", d.Attempt)
			}
			return inbox.Complete, nil
		}))
		await.Row(t, db, `select status = 'done' and attempts = 1 from inbox`)
	})

	t.Run("a processor that has nothing to do ends at once", func(t *testing.T) {
		t.Parallel()
		db := testdb.Reused(t)
		p := processor(db, func(context.Context, inbox.Delivery) (inbox.Result, error) { return inbox.Complete, nil })
		p.Poll = time.Hour
		start(t, p)()
	})
}
