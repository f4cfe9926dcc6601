package inbox_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// A page that receives, or an operator, may hold the row for longer than a commit
// waits for it. What the handler said must not be lost, nor pass for a death.
func TestProcessor_storesTheResultOfAHandlerDespiteALock(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]postgres.Options{
		"that does not come in time": {LockTimeout: 20 * time.Millisecond},
		"beyond the statement's end": {LockTimeout: -1, StatementTimeout: 300 * time.Millisecond},
	} {
		for said, test := range map[string]struct {
			err  error
			want string
		}{
			"it is done":               {nil, `select status = 'done' and attempts = 1 and deaths = 0 from inbox`},
			"it becomes a dead letter": {&inbox.DeadLetterError{Err: errors.New("a human decides")}, `select status = 'dead' and last_error = 'dead letter: a human decides' and deaths = 0 from inbox`},
			"it failed":                {errors.New("planted"), `select status = 'pending' and last_error = 'planted' and attempts = 1 and deaths = 0 from inbox`},
		} {
			t.Run(said+" "+name, func(t *testing.T) {
				t.Parallel()
				address := testdb.URL(t)
				db := testdb.OpenAt(t, address, postgres.Options{})
				put(t, db, "m1", "k")
				handled, end, refused := make(chan struct{}, 10), make(chan struct{}), &diary{}
				p := processor(testdb.OpenAt(t, address, limit), func(context.Context, *inbox.Delivery) error {
					handled <- struct{}{}
					<-end
					return test.err
				})
				p.Log = slog.New(slog.NewTextHandler(refused, nil))
				start(t, p)
				await.Receive(t, "the handler", handled)
				locked := testdb.Begin(t, db.Pool(), `select from inbox for no key update`)
				close(end)
				refused.await(t, "the end of the claim could not be stored")
				testdb.Exec(t, locked, `commit`)
				await.Row(t, db, test.want)
				if len(handled) > 0 {
					t.Error("it was handled again")
				}
			})
		}
	}
}

// A message that comes while a handler looks may be what the handler misses.
func TestWait_endsAtOnceIfAMessageOfItsKeyWasReceivedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		key  string
		want string
	}{
		"of its key":   {"k", `select status = 'done' from inbox where message_id = 'm1'`},
		"of other key": {"l", `select bool_and(status = case message_id when 'm1' then 'pending' else 'done' end) and max(due_at) > clock_timestamp() + interval '1 hour' from inbox`},
	} {
		t.Run(name, func(t *testing.T) {
			db := fresh(t, "m1@k")
			start(t, processor(db, func(_ context.Context, d *inbox.Delivery) error {
				if d.ID == "m1" && d.Waits == 0 {
					put(t, db, "m2", test.key)
					return &inbox.WaitError{AtLeast: 5 * time.Hour, Err: context.DeadlineExceeded}
				}
				return nil
			}))
			await.Row(t, db, test.want)
		})
	}

	t.Run("when the commit of the message and that of the wait overlap", func(t *testing.T) {
		db := fresh(t, "m1@k")
		begun, wait := make(chan struct{}), make(chan struct{})
		start(t, processor(db, func(_ context.Context, d *inbox.Delivery) error {
			if d.ID == "m1" && d.Waits == 0 {
				close(begun)
				<-wait
				return &inbox.WaitError{AtLeast: 5 * time.Hour, Err: context.DeadlineExceeded}
			}
			return nil
		}))
		await.Receive(t, "the handler", begun)
		tx := testdb.Begin(t, db.Pool(), `select from inbox where message_id = 'm1' for no key update`) // as receiving does it
		testdb.Exec(t, tx, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash) values ('r', 'm2', 'k', 't', '', '{}', '')`)
		close(wait)
		await.Blocked(t, db, 1)
		testdb.Exec(t, tx, `commit`)
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
	})
}
