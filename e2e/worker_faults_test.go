package e2e_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// chaos turns on every fault of the sandbox and kills workers at random.
func chaos(t *testing.T) {
	t.Helper()
	const seed = 7
	w := newWorld(t, setup{apis: 2, workers: 2})
	n, kills := 60, 6
	w.breakOutside(t, faults{Seed: seed, DropBefore: 0.08, DropAfter: 0.08, Error500: 0.08, Slow: slow{P: 0.3, MS: 150}})
	methods := []string{visa, cardDeclined, visa, insufficientFunds, visa, nobodysCard}
	f := w.flowing(t, n, 4, methods...)
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // kills must repeat, not surprise
	for range kills {
		pause(t.Context(), 200*time.Millisecond+rand.N(400*time.Millisecond)) //nolint:gosec // jitter
		victim := w.workers[r.IntN(len(w.workers))]
		if err := victim.Kill(); err != nil {
			t.Fatal(err)
		}
		restart(t, victim)
	}
	f.finish(t, w)
	w.calm(t)
	const ends = `
select concat_ws(' ', requested.data ->> 'payment_method', coalesce(outcome.data ->> 'code', 'succeeded'), count(*))
  from ledger_events requested
  join ledger_events outcome
    on outcome.stream_id = requested.stream_id
   and outcome.type in ('charge.succeeded.v1', 'charge.failed.v1')
 where requested.version = 1
 group by requested.data ->> 'payment_method', outcome.data ->> 'code'
 order by 1`
	share := n / len(methods)
	want := []string{
		spaced(cardDeclined, "card_declined", share),
		spaced(insufficientFunds, "card_declined", share),
		spaced(nobodysCard, "provider_refused", share),
		spaced(visa, "succeeded", 3*share),
	}
	if diff := cmp.Diff(want, rows[string](t, w, ends)); diff != "" {
		t.Errorf("how the charges ended (-want +got):\n%s", diff)
	}
	const trouble = `
select count(*)
  from inbox
 where attempts > 1
    or waits > 0`
	troubled := row[int64](t, w, trouble)
	if troubled == 0 {
		t.Error("no message met a fault or lost its holder: this showed nothing")
	}
	t.Logf("seed %d: %d charges, %d kills, %d messages that were tried again", seed, n, kills, troubled)
}

// waiting is how the messages of a receiver stand.
const waiting = `
select concat_ws(' ', count(*), 'messages,', count(*) filter (where waits > 1), 'have waited,', count(*) filter (where attempts > 1), 'count an attempt too many')
  from inbox
 where receiver = $1`

// providerDown kills the outside and brings it back: meanwhile connections are
// refused.
func providerDown(t *testing.T) {
	t.Helper()
	w := newWorld(t, setup{apis: 1, workers: 1})
	if err := w.sandbox.Kill(); err != nil {
		t.Fatal(err)
	}
	n := 20
	f := w.flowing(t, n, 4, visa)
	f.finish(t, w)
	want := spaced(n, "messages,", n, "have waited,", 0, "count an attempt too many")
	eventually(t, "all charges have waited for the provider twice", func() bool {
		return row[string](t, w, waiting, "fulfillment") == want
	})
	restart(t, w.sandbox)
	w.calm(t)
	const succeeded = `
select count(*)
  from ledger_events
 where type = 'charge.succeeded.v1'`
	if got := row[int64](t, w, succeeded); got != int64(n) {
		t.Errorf("%d of %d charges succeeded", got, n)
	}
	const attempts = `
select max(attempts)
  from inbox`
	if got := row[int32](t, w, attempts); got != 1 {
		t.Errorf("a message that only waited counts %d attempts", got)
	}
}

// shopDown closes the shop: charges go on, the shop is told when it is back.
func shopDown(t *testing.T) {
	t.Helper()
	w := newWorld(t, setup{apis: 1, workers: 1})
	w.breakOutside(t, faults{ShopDown: true})
	n := 10
	f := w.flowing(t, n, 4, visa, cardDeclined)
	f.finish(t, w)
	want := spaced(n, "messages,", n, "have waited,", 0, "count an attempt too many")
	eventually(t, "all charges have their outcome, and wait for the shop", func() bool {
		return row[string](t, w, waiting, "notification") == want
	})
	if told := w.books(t).Notifications; len(told) != 0 {
		t.Errorf("a closed shop was told %+v", told)
	}
	const pending = `
select count(*)
  from ledger_events
 where type in ('charge.succeeded.v1', 'charge.failed.v1', 'merchant.notified.v1')`
	if got := row[int64](t, w, pending); got != int64(n) {
		t.Errorf("%d outcomes and notifications, want %d outcomes", got, n)
	}
	w.mendOutside(t)
	w.calm(t)
	if told := w.books(t).Notifications; len(told) != n {
		t.Errorf("the shop was told of %d charges, want %d", len(told), n)
	}
}

// redelivered sets the reader of the outbox back to its beginning, while charges
// flow and at the end.
func redelivered(t *testing.T) {
	t.Helper()
	w := newWorld(t, setup{apis: 1, workers: 2})
	n, times := 60, 3
	const again = `
update outbox_offsets
   set transaction_id = '0',
       "offset" = 0`
	reset := func() {
		if _, err := w.tables.Exec(t.Context(), again); err != nil {
			t.Fatal(err)
		}
	}
	f := w.flowing(t, n, 4, visa, cardDeclined)
	for i := range times {
		f.awaitAnswered(t, (i+1)*n/(times+1))
		reset()
	}
	f.finish(t, w)
	w.calm(t)
	const duplicates = `
select sum(duplicates)::bigint
  from inbox`
	mid := row[int64](t, w, duplicates)
	reset()
	eventually(t, "every message has come again", func() bool {
		return row[int64](t, w, duplicates) >= mid+int64(2*n)
	})
	const messages = `
select count(*)
  from inbox`
	if got := row[int64](t, w, messages); got != int64(2*n) {
		t.Errorf("%d messages in the inbox, want %d: a request and an outcome of each charge", got, 2*n)
	}
	t.Logf("%d messages, %d duplicates", 2*n, row[int64](t, w, duplicates))
}
