package inbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

func TestProcessor_aMessageThatEndsItsProcessBecomesADeadLetterAndNoOtherDoes(t *testing.T) {
	testdb.Long(t, "it kills processes")
	t.Parallel()
	url := testdb.URL(t)
	db := testdb.OpenAt(t, url, postgres.Options{})
	putMany(t, db, `case n when 20 then 'poison' else n::text end`, `n`, 40)
	const maxDeaths = 14
	processes, holder := 0, ""
	var die func()
	var ended chan struct{}
	// A process of its own, as far as the database can tell: when it dies, all its connections
	// break at once, and it settles nothing.
	born := func() {
		processes++
		proxy := failpoint.StartCutter(t, url)
		ctx, cancel := context.WithCancel(t.Context())
		kill := func() { proxy.Close(); cancel() }
		die, ended = kill, make(chan struct{})
		p := processor(testdb.OpenAt(t, proxy.URL(), postgres.Options{}), func(ctx context.Context, d *inbox.Delivery) error {
			if d.ID == "poison" {
				kill()
				<-ctx.Done()
				return context.Cause(ctx)
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(50 * time.Millisecond): // its work
				return nil
			}
		})
		holder = fmt.Sprint("process ", processes)
		p.Holder, p.Concurrency, p.Policy.MaxDeaths, p.Drain = holder, 16, maxDeaths, time.Nanosecond
		go func(ended chan struct{}) { _ = p.Run(ctx); close(ended) }(ended)
	}
	born()
	look := func(done string) func() (string, bool) {
		return func() (string, bool) {
			select {
			case <-ended:
				born()
			default:
			}
			// What the dead have held, or claim by what they had sent, is due as after its
			// lease and every backoff.
			write(t, db, `update inbox set due_at = clock_timestamp() - interval '2 days' where status = 'running' and holder <> $1`, holder)
			yes := testdb.One[bool](t, db, done)
			return fmt.Sprintf("%d processes, the message %+v", processes, stored(t, db, "poison")), yes
		}
	}
	await.Progress(t, "the message is a dead letter", look(`select status = 'dead' from inbox where message_id = 'poison'`))
	await.Progress(t, "all others are done", look(`select bool_and(status = 'done' or message_id = 'poison') from inbox`))
	if most := maxDeaths + 1; processes > most {
		t.Errorf("%d processes, want at most %d", processes, most)
	}
	die()
	await.Receive(t, "the last process's end", ended)
	// Eight deaths beside it, and at most one claim whose answer was lost.
	await.Row(t, db, `select bool_and(deaths <= 9 or message_id = 'poison') from inbox`)
}

func TestClaim_runsFewerSuspectedPoisonMessagesTogetherTheMoreHoldersDied(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	for _, test := range []struct{ deaths, suspects, together int }{
		{deaths: 3, suspects: 40, together: 32},
		{deaths: 6, suspects: 10, together: 4},
		{deaths: 7, suspects: 5, together: 2},
		{deaths: 8, suspects: 3, together: 1},
		{deaths: 30, suspects: 2, together: 1},
	} {
		t.Run(fmt.Sprint(test.deaths, " deaths"), func(t *testing.T) {
			db := fresh(t)
			write(t, db, `insert into inbox (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, attempts, deaths, fence, due_at)
				select 'r', 'suspect' || n, n, 't', '', '{}', '', 'running', 1, $1::int - 1, 1, clock_timestamp() - interval '2 days'
				  from generate_series(1, $2::int) n`, test.deaths, test.suspects)
			begun, finish := make(chan struct{}, test.suspects), make(chan struct{})
			p := processor(db, func(_ context.Context, d *inbox.Delivery) error {
				if d.Attempt > 1 {
					begun <- struct{}{}
					<-finish
				}
				return nil
			})
			p.Concurrency, p.Policy.MaxDeaths = 64, 100
			start(t, p)
			for range test.together {
				await.Receive(t, "a suspect", begun)
			}
			for look := range 2 { // what comes now is claimed beside them
				put(t, db, fmt.Sprint("other", look), "other")
				await.Row(t, db, `select bool_and(status = 'done') from inbox where ordering_key = 'other'`)
			}
			if n := len(begun); n > 0 {
				t.Errorf("beside %d suspects %d more were tried", test.together, n)
			}
			close(finish)
			await.Row(t, db, `select bool_and(status = 'done') from inbox`)
		})
	}
}
