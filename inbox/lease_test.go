package inbox_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
	begun  chan *inbox.Delivery
	finish chan struct{}
	ended  chan error // of the commit
}

func newHung(db *postgres.DB, name string) *hung {
	return &hung{
		db: db, name: name,
		begun: make(chan *inbox.Delivery, 10), finish: make(chan struct{}), ended: make(chan error, 10),
	}
}

func (h *hung) handle(ctx context.Context, d *inbox.Delivery) error {
	h.begun <- d
	<-h.finish // it does not hear that its context has ended
	err := finish(ctx, h.db, d, h.name)
	h.ended <- err
	return err
}

// silenced has a holder claim the message m1 and go silent, and starts its heir.
func silenced(t *testing.T, db *postgres.DB) (zombie, heir *hung) {
	t.Helper()
	put(t, db, "m1", "k")
	zombie, heir = newHung(db, "of-the-zombie"), newHung(db, "of-the-heir")
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
	return zombie, heir
}

// finishes lets it commit, which succeeds.
func (h *hung) finishes(t *testing.T) {
	t.Helper()
	close(h.finish)
	testdb.Must(t, await.Receive(t, "the commit "+h.name, h.ended))
}

// loses lets it commit, which is refused.
func (h *hung) loses(t *testing.T) {
	t.Helper()
	close(h.finish)
	if err := await.Receive(t, "the commit "+h.name, h.ended); !inbox.IsLeaseLost(err) {
		t.Errorf("the commit %s ended with %v, want a lost lease", h.name, err)
	}
}

func TestLease(t *testing.T) {
	t.Parallel()

	t.Run("a message of a silent holder is taken over, and the holder loses its whole commit", func(t *testing.T) {
		db := fresh(t)
		zombie, heir := silenced(t, db)
		heir.finishes(t)
		zombie.loses(t)
		wantEffects(t, db, "of-the-heir")
		if r := stored(t, db, "m1"); r.Status != "done" || r.Fence != 2 || *r.DoneFence != 2 || r.Holder != "heir" {
			t.Errorf("the message is %+v", r)
		}
	})

	t.Run("a holder that fails after it was taken over changes nothing", func(t *testing.T) {
		db := fresh(t, "m1@k")
		begun, fail := make(chan struct{}), make(chan struct{})
		heir := newHung(db, "of-the-heir")
		stop := start(t, processor(db, func(context.Context, *inbox.Delivery) error {
			close(begun)
			<-fail
			return &inbox.DeadLetterError{Err: errors.New("of the zombie")}
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
		heir.finishes(t)
	})

	for name, test := range map[string]struct {
		found     string
		maxDeaths int
		answer    error
		want      string
	}{
		"a message whose holders all died becomes a dead letter": {
			found: `attempts = 12, deaths = 11, fence = 12`,
			want:  `status = 'dead' and deaths = 12 and last_error = '12 holders died or went silent'`,
		},
		"how many holders may die is a policy": {
			found: `attempts = 1, fence = 1`, maxDeaths: 1,
			want: `status = 'dead' and last_error = '1 holders died or went silent'`,
		},
		"an error clears the deaths before": {
			found: `attempts = 11, deaths = 10, fence = 11`, answer: errors.New("no"),
			want: `status = 'pending' and attempts = 1 and deaths = 0`,
		},
		"a wait clears the deaths before": {
			found: `attempts = 11, deaths = 10, fence = 11`, answer: &inbox.WaitError{AtLeast: time.Hour, Err: errors.New("no")},
			want: `status = 'pending' and attempts = 0 and deaths = 0`,
		},
		"a success keeps the deaths before": {
			found: `attempts = 11, deaths = 10, fence = 11`,
			want:  `status = 'done' and attempts = 12 and deaths = 11`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := fresh(t, "m1@k")
			write(t, db, `update inbox set status = 'running', `+test.found)
			silence(t, db)
			handled := atomic.Bool{}
			p := processor(db, func(context.Context, *inbox.Delivery) error {
				handled.Store(true)
				return test.answer
			})
			p.Policy.MaxDeaths = test.maxDeaths
			start(t, p)
			await.Row(t, db, `select `+test.want+` from inbox`)
			if dead := strings.Contains(test.want, "dead'"); handled.Load() == dead {
				t.Errorf("handled: %v, dead letter: %v", handled.Load(), dead)
			}
		})
	}

	t.Run("a heartbeat keeps the message of a handler that works for longer than a lease", func(t *testing.T) {
		testdb.Long(t, "it waits for a lease")
		db := fresh(t, "m1@k")
		h := newHung(db, "of-the-patient")
		p := processor(db, h.handle)
		p.Policy.Lease = renewedLease
		start(t, p)
		await.Receive(t, "the holder", h.begun)
		rival := processor(db, func(context.Context, *inbox.Delivery) error {
			t.Error("it was taken from a holder that lives")
			return nil
		})
		rival.Policy.BackoffBase, rival.Policy.BackoffCap = 10*time.Second, 10*time.Second // a part of it is for a machine that stalls
		start(t, rival)
		awaitRenewal(t, db, "m1")
		h.finishes(t)
		wantEffects(t, db, "of-the-patient")
	})

	t.Run("a holder ends no other message to which a failover has given its number and fence", func(t *testing.T) {
		db := fresh(t)
		begun, proceed, ended := make(chan string), map[string]chan struct{}{"lost": make(chan struct{}), "new": make(chan struct{})}, make(chan error)
		p := unpolled(db, func(ctx context.Context, d *inbox.Delivery) error {
			if proceed[d.ID] == nil {
				return finish(ctx, db, d)
			}
			begun <- d.ID
			<-proceed[d.ID]
			err := finish(context.WithoutCancel(ctx), db, d, "of-the-"+d.ID)
			ended <- err
			return err
		})
		startWithFreeSlots(t, db, p)
		mustDeliver(t, p, "lost=1@k")
		await.Receive(t, "the first handler", begun)
		again := number(t, db, "lost")
		write(t, db, `delete from inbox where id = $1`, again)
		write(t, db, `select setval(pg_get_serial_sequence('inbox', 'id'), $1, false)`, again)
		mustDeliver(t, p, "new=1@l")
		await.Receive(t, "the handler of the other message", begun)
		close(proceed["lost"])
		if err := await.Receive(t, "the first commit", ended); !inbox.IsLeaseLost(err) {
			t.Errorf("the commit of the lost message is answered %v", err)
		}
		close(proceed["new"])
		testdb.Must(t, await.Receive(t, "the second commit", ended))
		mustDeliver(t, p, "later=1@l")
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
		wantEffects(t, db, "of-the-new")
	})

	t.Run("a second end of a delivery changes nothing", func(t *testing.T) {
		db := fresh(t, "m1@k")
		errs := make(chan error, 2)
		start(t, processor(db, func(ctx context.Context, d *inbox.Delivery) error {
			for range 2 { // the first answer was lost
				errs <- finish(ctx, db, d)
			}
			return nil
		}))
		for range 2 {
			testdb.Must(t, await.Receive(t, "a commit", errs))
		}
		await.Row(t, db, `select status = 'done' and done_fence = 1 from inbox`)
	})
}

func TestDrain(t *testing.T) {
	t.Parallel()

	t.Run("a handler that runs when the program stops may finish", func(t *testing.T) {
		db := fresh(t, "m1@k", "m2@k")
		begun, finish := make(chan struct{}, 2), make(chan struct{})
		p := processor(db, func(ctx context.Context, _ *inbox.Delivery) error {
			begun <- struct{}{}
			<-finish
			return ctx.Err()
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { _ = p.Run(ctx); close(ended) }()
		await.Receive(t, "the handler", begun)
		cancel()
		close(finish)
		await.Receive(t, "the processor's end", ended)
		if first, second := stored(t, db, "m1"), stored(t, db, "m2"); first.Status != "done" || second.Status != "pending" || second.Attempts != 0 {
			t.Errorf("the message at work is %+v, the one behind it %+v", first, second)
		}
	})

	t.Run("what does not finish in time is released at once, and no attempt is counted", func(t *testing.T) {
		db := fresh(t, "m1@k")
		begun := make(chan struct{})
		cause := make(chan error, 1)
		p := processor(db, func(ctx context.Context, _ *inbox.Delivery) error {
			close(begun)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return ctx.Err()
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
		start(t, processor(db, func(_ context.Context, d *inbox.Delivery) error {
			if d.Attempt != 1 {
				t.Errorf("attempt %d", d.Attempt)
			}
			return nil
		}))
		await.Row(t, db, `select status = 'done' and attempts = 1 from inbox`)
	})
}

// One message that ends every process which takes it must not make dead letters of those that
// happen to be held beside it: after a silent end they are taken again apart.
func TestClaim_takesOverMessagesOfASilentHolderInSeparateClaims(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, attempts, fence, due_at)
		select 'r', n, n, 't', '', '{}', '', 'running', 1, 1, clock_timestamp() - interval '30 minutes' from generate_series(1, 64) n`)
	p := processor(db, answer(nil))
	p.Policy.BackoffCap = time.Hour
	start(t, p)
	// Half of the backoff has passed, so about half of them are due: fewer than 8 of 64 in one of
	// 10^10 runs.
	await.Row(t, db, `select count(*) between 8 and 56 from inbox where status = 'done'`)
	put(t, db, "after", "after")
	await.Row(t, db, `select status = 'done' from inbox where message_id = 'after'`)
	await.Row(t, db, `select count(*) between 8 and 56 from inbox where status = 'running'`)
}
