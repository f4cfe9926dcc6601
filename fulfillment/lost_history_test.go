package fulfillment_test

import (
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
)

// TestCharge_historyLostInAFailover is about a step that was decided on events which an
// asynchronous standby did not have when it became the primary.
func TestCharge_historyLostInAFailover(t *testing.T) {
	t.Parallel()

	t.Run("commits nothing on a stream without its history and waits", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		first := order()
		first.Items = nil // no constraint on stock refuses the commit
		w.append(w.accept("ch_1", first), domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"})
		w.provider.on("retrieve", shows("requires_confirmation"))
		w.provider.on("confirm", meanwhile(func() { w.failOver(0) }, shows("succeeded")))
		w.expectKind(w.deliver(), "waits")
		w.expectCalls("retrieve confirm")
		if n := w.text(`select count(*)::text from ledger_events`); n != "0" {
			t.Errorf("%s events were appended to a stream without its history: %s", n,
				w.text(`select string_agg(version || ' ' || type, ', ' order by version) from ledger_events`))
		}
		if n := w.text(`select count(*)::text from outbox where message_id not in (select event_id::text from ledger_events)`); n != "0" {
			t.Errorf("%s messages announce events that were not stored", n)
		}
	})

	t.Run("continues from the events that are left", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.provider.on("retrieve", shows("requires_confirmation"))
		w.provider.on("confirm", meanwhile(func() { w.failOver(1) }, shows("succeeded")))
		w.provider.on("create", shows("succeeded")) // the same intent: its idempotency key is the same
		w.provider.on("retrieve", shows("succeeded"))
		w.expectKind(w.deliver(), "done")
		if got := w.text(`select string_agg(version || ' ' || type, ', ' order by version) from ledger_events`); got !=
			"1 charge.requested.v1, 2 inventory.reserved.v1, 3 payment.started.v1, 4 payment.captured.v1, 5 charge.succeeded.v1" {
			t.Errorf("the stream is %s", got)
		}
	})
}

// failOver removes what the new primary does not have: the events above a version and what
// was committed with them.
func (w *world) failOver(version int) {
	w.Helper()
	b := &pgx.Batch{}
	b.Queue(`select set_config('session_replication_role', 'replica', true)`)
	b.Queue(`delete from ledger_events where version > ` + strconv.Itoa(version))
	b.Queue(`delete from ledger_postings where version > ` + strconv.Itoa(version))
	b.Queue(`delete from reservations`)
	b.Queue(`update stock set available = available + reserved, reserved = 0`)
	w.commit(b)
}
