package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
)

func TestProcess(t *testing.T) {
	t.Parallel()

	t.Run("every message is handled once, those of a key one at a time and oldest first", func(t *testing.T) {
		db := fresh(t)
		const keys, each = 10, 8
		var want [keys]string
		for n := range each {
			for k := range keys {
				put(t, db, fmt.Sprintf("%d-%d", k, n), strconv.Itoa(k))
				want[k] += fmt.Sprintf("%d-%d ", k, n)
			}
		}
		var running [keys]atomic.Int32
		var diaries [keys]diary
		handle := func(_ context.Context, d *inbox.Delivery) error {
			var k int
			if _, err := fmt.Sscan(d.OrderingKey, &k); err != nil {
				return err
			}
			if running[k].Add(1) > 1 {
				t.Errorf("two messages of the key %d run", k)
			}
			defer running[k].Add(-1)
			diaries[k].note("%s", d.ID)
			return nil
		}
		for range 3 { // processes
			start(t, processor(db, handle))
		}
		await.Row(t, db, `select bool_and(status = 'done' and attempts = 1 and done_fence = 1 and finished_at is not null) from inbox`)
		for k := range keys {
			if diff := cmp.Diff(strings.TrimSpace(want[k]), diaries[k].String()); diff != "" {
				t.Errorf("messages of the key %d (-want +got):\n%s", k, diff)
			}
		}
	})

	t.Run("an older message that arrives late waits for the running one, and delays no other", func(t *testing.T) {
		db := fresh(t, "young@k")
		begun, finish := make(chan struct{}), make(chan struct{})
		start(t, processor(db, func(_ context.Context, d *inbox.Delivery) error {
			if d.ID == "young" {
				close(begun)
				<-finish
			}
			return nil
		}))
		await.Receive(t, "the handler", begun)
		write(t, db, `insert into inbox (id, receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
			overriding system value values (-1, 'r', 'old', 'k', 't', '', '{}', '')`)
		put(t, db, "other", "l")
		await.Row(t, db, `select status = 'done' from inbox where message_id = 'other'`)
		if r := stored(t, db, "old"); r.Status != "pending" || r.Fence != 0 {
			t.Errorf("the older one is %+v", r)
		}
		close(finish)
		await.Row(t, db, `select bool_and(status = 'done') from inbox`)
	})
}

// A message that is handled again and again goes through states.
func TestFailure(t *testing.T) {
	t.Parallel()
	fire, closed := errors.New("the printer is on fire"), errors.New("the bank is closed")
	const since = `waiting_since = waiting_since - interval `
	for name, test := range map[string]struct {
		handle inbox.Handler
		states []string
		change string // of each state, after which the message is due
	}{
		"an error is tried again later, and counted": {answer(fire), []string{
			`status = 'pending' and attempts = 1 and last_error = 'the printer is on fire' and due_at < clock_timestamp() + interval '1 hour'`,
			`status = 'pending' and attempts = 2 and last_error = 'the printer is on fire' and due_at < clock_timestamp() + interval '2 hours'`,
			`status = 'dead'    and attempts = 3 and last_error = 'the printer is on fire'`,
		}, `attempts = attempts`},
		"a wait for a service is tried again and not counted": { // more often than there are attempts
			answer(fmt.Errorf("step: %w", &inbox.WaitError{AtLeast: 5 * time.Hour, Err: closed})), []string{
				`status = 'pending' and attempts = 0 and waits = 1 and due_at > clock_timestamp() + interval '4 hours'`,
				`status = 'pending' and attempts = 0 and waits = 2 and last_error = 'step: waiting: the bank is closed'`,
				`status = 'pending' and attempts = 0 and waits = 3`,
				`status = 'pending' and attempts = 0 and waits = 4 and due_at > clock_timestamp() + interval '4 hours'`,
			}, `attempts = attempts`,
		},
		"a wait may bound its backoff": {answer(&inbox.WaitError{AtMost: time.Second, Err: closed}), []string{
			`status = 'pending' and waits = 1 and due_at < clock_timestamp() + interval '1 minute'`,
			`status = 'pending' and waits = 2 and due_at < clock_timestamp() + interval '1 minute'`,
			`status = 'pending' and waits = 3 and due_at < clock_timestamp() + interval '1 minute'`,
		}, `waits = waits`},
		"a wait that lasts too long makes a dead letter": {answer(&inbox.WaitError{Err: closed}), []string{
			`status = 'pending' and waits = 1`,
			`status = 'pending' and waits = 2`,
			`status = 'dead'    and waits = 3 and last_error = 'waiting: the bank is closed'`,
		}, since + `'59 minutes'`},
		"so is one that waits and fails by turns, of which each resets the other's count": {
			func(_ context.Context, d *inbox.Delivery) error {
				if d.Waits > 0 && d.Attempt == 1 {
					return fire
				}
				return &inbox.WaitError{AtLeast: 5 * time.Hour, Err: closed}
			}, []string{
				`status = 'pending' and waits = 1 and attempts = 0`,
				`status = 'pending' and waits = 1 and attempts = 1`,
				`status = 'pending' and waits = 2 and attempts = 0`,
				`status = 'pending' and waits = 2 and attempts = 1`,
				`status = 'dead'    and waits = 3`, // beyond the hour that it may wait
			}, since + `'20 minutes'`,
		},
		"unless the service itself says that it takes so long": {
			func(_ context.Context, d *inbox.Delivery) error {
				noDeadline := d.Waits == 1 || d.Waits == 2
				return &inbox.WaitError{AtLeast: time.Minute, NoDeadline: noDeadline, Err: errors.New("the payment is processing")}
			}, []string{
				`status = 'pending' and waits = 1 and waiting_since is not null`,
				`status = 'pending' and waits = 2 and waiting_since is null and due_at < clock_timestamp() + interval '2 minutes'`, // though it had waited for two hours
				`status = 'pending' and waits = 3 and waiting_since is null and due_at < clock_timestamp() + interval '2 minutes'`,
				`status = 'pending' and waits = 4 and waiting_since > clock_timestamp() - interval '1 minute'`,
				`status = 'dead'    and waits = 5`,
			}, since + `'2 hours'`,
		},
		"a message that can never continue is a dead letter at once": {
			answer(fmt.Errorf("step: %w", &inbox.DeadLetterError{Err: errors.New("the amounts differ")})), []string{
				`status = 'dead' and attempts = 1 and last_error = 'step: dead letter: the amounts differ'`,
			}, `attempts = attempts`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := fresh(t, "m1@k")
			start(t, processor(db, test.handle))
			for _, state := range test.states {
				await.Row(t, db, `select `+state+` from inbox`)
				write(t, db, `update inbox set due_at = clock_timestamp(), `+test.change)
			}
		})
	}

	t.Run("the backoff is random below its bounds", func(t *testing.T) {
		db := fresh(t)
		const messages = 60
		putMany(t, db, `'m' || n`, `'k' || n`, messages)
		write(t, db, `update inbox set attempts = 40`)
		p := processor(db, answer(errors.New("no")))
		p.Policy.MaxAttempts, p.Policy.BackoffBase, p.Policy.BackoffCap = 100, time.Hour, 8*time.Hour
		start(t, p)
		await.Row(t, db, `select bool_and(attempts = 41 and status = 'pending') from inbox`)
		longest := testdb.One[time.Duration](t, db, `select max(due_at - clock_timestamp()) from inbox`)
		shortest := testdb.One[time.Duration](t, db, `select min(due_at - clock_timestamp()) from inbox`)
		// Of sixty draws, that all lie in one half is as good as impossible.
		if longest > 8*time.Hour || longest < 4*time.Hour || shortest > 4*time.Hour {
			t.Errorf("due between %v and %v", shortest, longest)
		}
	})

	t.Run("a panic is an attempt", func(t *testing.T) {
		db := fresh(t, "m1@k", "m2@l")
		start(t, processor(db, func(_ context.Context, d *inbox.Delivery) error {
			if d.ID == "m1" {
				panic("boom")
			}
			return nil
		}))
		await.Row(t, db, `select bool_and(attempts = 1 and status = case message_id when 'm1' then 'pending' else 'done' end) from inbox`)
		if r := stored(t, db, "m1"); !strings.HasPrefix(r.LastError, "panic: boom\n") || !strings.Contains(r.LastError, "processor_test.go") {
			t.Errorf("the reason is %q", r.LastError)
		}
	})

	t.Run("however long a backoff may be and however often it was met", func(t *testing.T) {
		db := fresh(t)
		for _, id := range []string{"waits", "fails", "dies"} {
			put(t, db, id, id)
		}
		write(t, db, `update inbox set waits = 1000, waiting_since = clock_timestamp() where message_id = 'waits'`)
		write(t, db, `update inbox set attempts = 1000 where message_id = 'fails'`)
		write(t, db, `update inbox set status = 'running', attempts = 1000, deaths = 1000, fence = 1000, due_at = '1000-01-01' where message_id = 'dies'`)
		p := processor(db, func(_ context.Context, d *inbox.Delivery) error {
			switch d.ID {
			case "waits":
				return &inbox.WaitError{Err: errors.New("the bank is closed")}
			case "fails":
				return errors.New("planted")
			}
			return nil
		})
		p.Policy.MaxAttempts, p.Policy.MaxDeaths = math.MaxInt32, math.MaxInt32
		p.Policy.BackoffBase, p.Policy.BackoffCap = 100*24*time.Hour, 100*365*24*time.Hour
		start(t, p)
		await.Row(t, db, `select bool_and(case message_id when 'dies' then status = 'done' else status = 'pending' and due_at > clock_timestamp() end) from inbox`)
	})

	t.Run("a dead letter holds up its own key and no other", func(t *testing.T) {
		db := fresh(t, "dead@k", "behind@k", "aside@l")
		start(t, processor(db, func(_ context.Context, d *inbox.Delivery) error {
			if d.ID == "dead" {
				return &inbox.DeadLetterError{Err: errors.New("a human decides")}
			}
			return nil
		}))
		await.Row(t, db, `select bool_and(status = case message_id when 'dead' then 'dead' else 'done' end) from inbox where message_id <> 'behind'`)
		for _, id := range []string{"later", "latest"} { // claims after the dead letter
			put(t, db, id, id)
			await.Row(t, db, `select status = 'done' from inbox where message_id = $1`, id)
		}
		if r := stored(t, db, "behind"); r.Status != "pending" || r.Attempts != 0 {
			t.Errorf("the message behind it is %+v", r)
		}
	})
}
