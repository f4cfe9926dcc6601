package inbox_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/inbox/deadletter"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

var errClosed = errors.New("the bank is closed")

// A message that is handled again and again goes through states.
func TestEnd_statesOfAMessage(t *testing.T) {
	t.Parallel()
	const since = `waiting_since = waiting_since - interval `
	for name, test := range map[string]struct {
		handle inbox.Handler
		states []string
		change string // after each state, with which the message is due
	}{
		"an error is retried with backoff, and counted": {answer(errors.New("odd")), []string{
			`status = 'pending' and attempts = 1 and last_error = 'odd' and due_at < clock_timestamp() + interval '12 hours'`,
			`status = 'pending' and attempts = 2 and last_error = 'odd' and due_at < clock_timestamp() + interval '24 hours'`,
			`status = 'dead' and first and attempts = 3 and last_error = 'odd' and jsonb_array_length(history) = 3`,
		}, `attempts = attempts`},
		"a panic is an error": {func(context.Context, *inbox.Delivery) error { panic("boom") }, []string{
			`status = 'pending' and attempts = 1 and last_error like 'panic: boom%end_test.go%'`,
		}, `attempts = attempts`},
		"a wait is not counted": {answer(fmt.Errorf("step: %w", &inbox.WaitError{AtLeast: 5 * time.Hour, Err: errClosed})), []string{
			`status = 'pending' and attempts = 0 and waits = 1 and due_at > clock_timestamp() + interval '4 hours'`,
			`status = 'pending' and attempts = 0 and waits = 2 and last_error = 'step: waiting: the bank is closed'`,
			`status = 'pending' and attempts = 0 and waits = 3`,
			`status = 'pending' and attempts = 0 and waits = 4 and due_at > clock_timestamp() + interval '4 hours'`,
		}, `attempts = attempts`},
		"a wait is cut to LongestWait": {answer(&inbox.WaitError{AtLeast: 100 * time.Hour, NoDeadline: true, Err: errClosed}), []string{
			`status = 'pending' and waits = 1 and due_at between clock_timestamp() + interval '47 hours' and clock_timestamp() + interval '48 hours'`, // the BackoffCap is longer
		}, `attempts = attempts`},
		"a wait that lasts too long makes a dead letter": {answer(&inbox.WaitError{Err: errClosed}), []string{
			`status = 'pending' and waits = 1`,
			`status = 'pending' and waits = 2`,
			`status = 'dead'    and waits = 3 and last_error = 'waiting: the bank is closed'`,
		}, since + `'59 minutes'`},
		"so does one that waits and fails by turns": {func(_ context.Context, d *inbox.Delivery) error {
			if d.Waits > 0 && d.Attempt == 1 {
				return errors.New("odd")
			}
			return &inbox.WaitError{AtLeast: 5 * time.Hour, Err: errClosed}
		}, []string{
			`status = 'pending' and waits = 1 and attempts = 0`,
			`status = 'pending' and waits = 1 and attempts = 1`,
			`status = 'pending' and waits = 2 and attempts = 0`,
			`status = 'pending' and waits = 2 and attempts = 1`,
			`status = 'dead'    and waits = 3`,
		}, since + `'20 minutes'`},
		"unless the service says that it takes so long": {func(_ context.Context, d *inbox.Delivery) error {
			return &inbox.WaitError{AtLeast: time.Minute, NoDeadline: d.Waits == 1 || d.Waits == 2, Err: errClosed}
		}, []string{
			`status = 'pending' and waits = 1 and waiting_since is not null`,
			`status = 'pending' and waits = 2 and waiting_since is null and due_at < clock_timestamp() + interval '2 minutes'`,
			`status = 'pending' and waits = 3 and waiting_since is null`,
			`status = 'pending' and waits = 4 and waiting_since > clock_timestamp() - interval '1 minute'`,
			`status = 'dead'    and waits = 5`,
		}, since + `'2 hours'`},
		"a dead letter": {answer(fmt.Errorf("step: %w", &inbox.DeadLetterError{Err: errors.New("never")})), []string{
			`status = 'dead' and first and attempts = 1 and last_error = 'step: dead letter: never'`,
		}, `attempts = attempts`},
		"an error that PostgreSQL cannot store": {answer(errors.New("\x00\xff" + strings.Repeat("x", 5000))), []string{
			`status = 'pending' and coalesce(length(last_error) between 1990 and 2000, false)`,
		}, `attempts = attempts`},
	} {
		t.Run(name, func(t *testing.T) {
			db, wake := fresh(t, "m1@k"), make(chan struct{}, 1)
			start(t, processor(t, db, test.handle, func(o *inbox.Options) { o.Wake = wake }))
			for _, state := range test.states {
				testrun.Row(t, db, `select `+state+` from inbox`)
				write(t, db, `update inbox set due_at = clock_timestamp(), `+test.change)
				loop.Ring(wake)
			}
		})
	}
}

func TestEnd_backoffIsRandomWithinItsBounds(t *testing.T) {
	testrun.Long(t, "it ends many deliveries")
	t.Parallel()
	db := stocked(t)
	putMany(t, db, "", 60)
	write(t, db, `update inbox set attempts = 1000`)
	start(t, processor(t, db, answer(errors.New("no")), func(o *inbox.Options) {
		o.Policy.MaxAttempts, o.Policy.BackoffBase, o.Policy.BackoffCap = math.MaxInt32, time.Hour, 8*time.Hour
	}))
	// Of sixty draws, that all lie in one half is as good as impossible.
	testrun.Row(t, db, `select bool_and(attempts = 1001 and status = 'pending' and due_at < clock_timestamp() + interval '8 hours')
		and max(due_at) > clock_timestamp() + interval '4 hours' and min(due_at) < clock_timestamp() + interval '4 hours' from inbox`)
}

// What the holder knows of the end, and what the observer receives. An end that was stored is not stored again:
// what is committed with it takes effect once.
func TestEnd_isReported(t *testing.T) {
	testrun.Long(t, "it has a database for each case")
	t.Parallel()
	type within struct{}
	const rolledBack = -1
	for name, test := range map[string]struct {
		meanwhile string // happens to the row
		commits   int    // of its handler, or rolledBack
		err       error
		want      inbox.End
		row       string
	}{
		"done by the inbox":                                {`fence = fence`, 0, nil, inbox.EndDone, `status = 'done' and not first and done_fence = 1`},
		"done by the handler":                              {`fence = fence`, 1, nil, inbox.EndDone, `status = 'done'`},
		"done twice by the handler":                        {`fence = fence`, 2, nil, inbox.EndLost, `status = 'done' and done_fence = 1`},
		"an error":                                         {`fence = fence`, 0, errClosed, inbox.EndFailed, `status = 'pending'`},
		"a wait":                                           {`fence = fence`, 0, &inbox.WaitError{Err: errClosed}, inbox.EndWaiting, `status = 'pending'`},
		"a commit that waited for a lock":                  {`fence = fence`, 0, fmt.Errorf("step: %w", &pgconn.PgError{Code: "55P03"}), inbox.EndWaiting, `status = 'pending' and attempts = 0 and waiting_since is not null`},
		"a commit without an answer":                       {`fence = fence`, 0, groupcommit.ErrUnknown, inbox.EndFailed, `status = 'pending' and attempts = 1`},
		"a statement that takes too long":                  {`fence = fence`, 0, &pgconn.PgError{Code: "57014"}, inbox.EndFailed, `status = 'pending' and attempts = 1`},
		"an error after the commit":                        {`fence = fence`, 1, errClosed, inbox.EndLost, `status = 'done'`},
		"an error after an end that was rolled back":       {`fence = fence`, rolledBack, errClosed, inbox.EndFailed, `status = 'pending' and attempts = 1`},
		"a wait for an operator":                           {`fence = fence`, 0, &inbox.WaitError{NeedsOperator: true, Err: errClosed}, inbox.EndBlocked, `status = 'pending'`},
		"a dead letter":                                    {`fence = fence`, 0, &inbox.DeadLetterError{Err: errClosed}, inbox.EndDeadLetter, `status = 'dead'`},
		"a claim of another holder":                        {`fence = fence + 1`, 1, nil, inbox.EndLost, `status = 'running' and done_fence is null`},
		"done beside another holder's claim":               {`fence = fence + 1`, 0, nil, inbox.EndLost, `status = 'running' and done_fence is null`},
		"an error beside another's claim":                  {`fence = fence + 1`, 0, errClosed, inbox.EndLost, `status = 'running' and last_error is null`},
		"a wait beside another's end":                      {`status = 'done', first = false, fence = 2, done_fence = 2`, 0, &inbox.WaitError{Err: errClosed}, inbox.EndLost, `status = 'done' and waits = 0`},
		"a decision of an operator":                        {`status = 'discarded', first = false, decided_by = 'ada', decided_at = now(), finished_at = now()`, 1, nil, inbox.EndLost, `status = 'discarded'`},
		"another's claim under its fence, of a failover":   {`holder = 'other'`, 1, nil, inbox.EndLost, `status = 'running' and done_fence is null`},
		"an error beside that claim":                       {`holder = 'other'`, 0, errClosed, inbox.EndLost, `status = 'running' and last_error is null`},
		"another message under its number, of a failover":  {`message_id = 'other'`, 1, nil, inbox.EndLost, `status = 'running' and done_fence is null`},
		"an error beside another message under its number": {`message_id = 'other'`, 0, errClosed, inbox.EndLost, `status = 'running' and last_error is null`},
	} {
		t.Run(name, func(t *testing.T) {
			db, seen := fresh(t, "m1@k"), make(chan inbox.End, 1)
			start(t, processor(t, db, func(ctx context.Context, d *inbox.Delivery) error {
				if ctx.Value(within{}) != d.ID {
					return errors.New("it has another context")
				}
				write(t, db, `update inbox set `+test.meanwhile)
				var err error
				for range test.commits {
					err = d.Commit(ctx, db, &pgx.Batch{})
				}
				if test.commits == rolledBack {
					tx := testdb.Begin(t, db.Pool(), `select`)
					err = errors.Join(d.Done(ctx, tx), tx.Rollback(ctx))
				}
				return cmp.Or(err, test.err)
			}, func(o *inbox.Options) {
				o.OnAttempt = func(ctx context.Context, d *inbox.Delivery) (context.Context, func(inbox.End)) {
					return context.WithValue(ctx, within{}, d.ID), func(end inbox.End) { seen <- end }
				}
			}))
			testrun.Same(t, "the end", test.want, testrun.Receive(t, "the end", seen))
			testrun.Row(t, db, `select `+test.row+` from inbox`)
		})
	}
}

func TestEnd_keysAreOrderedAndOneAtATime(t *testing.T) {
	t.Parallel()
	db := stocked(t)
	var page []inbox.Message
	for n := range 80 {
		page = append(page, inbox.Message{ID: strconv.Itoa(n), OrderingKey: strconv.Itoa(n % 10)})
	}
	first := processor(t, db, answer(nil))
	start(t, first)
	start(t, processor(t, db, answer(nil)))
	receive(t, first, page...)
	done(t, db)
	testrun.Same(t, "claims out of the order of a key, or before the end of an older one", 0, testdb.One[int](t, db, `
select count(*)
  from inbox older
  join inbox younger on younger.ordering_key = older.ordering_key and younger.message_id::int > older.message_id::int
 where younger.claimed_at < older.finished_at`))
}

// A key may be without a first message for a moment, as after a discard. What is stored then is behind what waits.
func TestAppend_toAKeyWithoutAFirstMessage(t *testing.T) {
	t.Parallel()
	for _, entry := range []string{"Receive", "Append"} {
		t.Run(entry, func(t *testing.T) {
			db := fresh(t, "m1@k", "m2@k")
			write(t, db, `update inbox set status = 'dead' where message_id = 'm1'`)
			testdb.Must(t, deadletter.Discard(t.Context(), db, testdb.One[int64](t, db, `select min(id) from inbox`), "ada"))
			if entry == "Append" {
				put(t, db, "m3", "k")
			} else {
				receive(t, processor(t, db, answer(nil)), note("m3", ""))
			}
			testrun.Same(t, "first", []string{"m2"}, testdb.All[string](t, db, `select message_id from inbox where first`))
		})
	}
}

// A message that waits is due when another one of its key is received, also while its handler runs.
func TestEnd_aWaitEndsWithTheNextMessageOfItsKey(t *testing.T) {
	t.Parallel()
	next, repeated := []inbox.Message{note("next", "")}, []inbox.Message{note("waits", ""), note("next", "")}
	for name, page := range map[string][]inbox.Message{
		"while it waits": next, "while it runs": next, "while it waits, and is repeated": repeated, "while it runs, and is repeated": repeated,
	} {
		t.Run(name, func(t *testing.T) {
			db := fresh(t)
			begun, finish := make(chan struct{}, 9), make(chan struct{}, 9)
			p := processor(t, db, func(_ context.Context, d *inbox.Delivery) error {
				if d.ID != "waits" || d.Waits > 0 {
					return nil
				}
				begun <- struct{}{}
				<-finish
				return &inbox.WaitError{AtLeast: time.Hour, Err: errClosed}
			})
			start(t, p)
			receive(t, p, note("waits", ""))
			testrun.Receive(t, "the handler", begun)
			if strings.HasPrefix(name, "while it waits") {
				finish <- struct{}{}
				testrun.Row(t, db, `select waits = 1 and status = 'pending' from inbox`)
			}
			receive(t, p, page...)
			finish <- struct{}{}
			done(t, db)
		})
	}
}

// What handlers cannot finish in Drain is released without counting an attempt, and nothing more is claimed.
func TestDrain(t *testing.T) {
	testrun.Long(t, "it waits for drains")
	t.Parallel()
	db, begun, finish := stocked(t, "finishes@", "hangs@"), make(chan string, 3), make(chan struct{})
	p := processor(t, db, func(ctx context.Context, d *inbox.Delivery) error {
		begun <- d.ID
		if d.ID == "finishes" {
			select {
			case <-finish:
			case <-ctx.Done():
				t.Error("a handler was not given the time of Drain")
			}
			return nil
		}
		<-ctx.Done()
		return &inbox.WaitError{Err: ctx.Err()}
	}, func(o *inbox.Options) { o.Concurrency, o.Drain = 3, 5*time.Second })
	stop := start(t, p)
	testrun.Receive(t, "a handler", begun)
	testrun.Receive(t, "the other handler", begun)
	time.AfterFunc(time.Second, func() { // when the drain has begun
		_, err := p.Receive(context.WithoutCancel(t.Context()), note("late", "")) // for which a slot is free
		if err != nil {
			t.Error(err)
		}
		close(finish)
	})
	stop()
	testrun.Row(t, db, `select string_agg(concat_ws(' ', message_id, status, attempts, waits, fence, due_at <= clock_timestamp()), ', ' order by id)
		= 'finishes done 1 0 1 t, hangs pending 0 0 1 t, late pending 0 0 0 t' from inbox`)
}

func TestDeleteExpired(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	write(t, db, `
insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, first, done_fence, decided_by, decided_at, finished_at)
select 'r', s || age, s || age, '', '', '{}', '', s, s = 'running', case s when 'done' then 0 end,
       case s when 'discarded' then 'ada' end, case s when 'discarded' then now() end, now() - make_interval(hours => age)
  from unnest(array['pending', 'running', 'done', 'dead', 'discarded']) s, generate_series(0, 3) age`)
	locked := testdb.Begin(t, db.Pool(), `select from inbox where message_id = 'done3' for update`)
	var deleted []int
	for range 3 {
		n, err := inbox.DeleteExpired(t.Context(), db, 30*time.Minute, 1)
		testdb.Must(t, err)
		deleted = append(deleted, n)
	}
	testrun.Same(t, "deleted", []int{1, 1, 0}, deleted)
	testdb.Must(t, locked.Rollback(t.Context()))
	n, err := inbox.DeleteExpired(t.Context(), db, 30*time.Minute, 10)
	testdb.Must(t, err)
	testrun.Same(t, "deleted", 1, n)
	testrun.Same(t, "left", "dead4 discarded4 done1 pending4 running4",
		testdb.One[string](t, db, `select string_agg(s || n, ' ' order by s) from (select status s, count(*) n from inbox group by 1) x`))
}
