package fulfillment_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
)

// The histories of charges in the database.
const (
	toStarted = "charge.requested inventory.reserved payment.started"
	paid      = toStarted + " payment.captured charge.succeeded"
	refunded  = paid + " refund.requested refund.succeeded"
	creates   = "create/0:requires_confirmation "
)

// TestCharge is what one commit stores beside the events: the stock, and the message about the outcome.
func TestCharge(t *testing.T) {
	t.Parallel()
	t.Run("that is paid and refunded", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.accept("ch_1", order())
		f.deliver(creates+"confirm/3:cut", "waits")
		f.expect(toStarted, held, "", "pending")
		f.deliver("retrieve:succeeded", "done")
		f.expect(paid, sold, "charge.succeeded", "done")
		f.request()
		f.deliver("refunds: refund/0:succeeded", "done")
		f.expect(refunded, sold, "charge.succeeded refund.succeeded", "done done")
	})
	t.Run("that is declined", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.accept("ch_1", order())
		f.deliver(creates+"confirm/3:declined cancel:canceled", "done")
		f.expect(toStarted+" payment.declined inventory.released charge.failed", returned, "charge.failed", "done")
	})
	t.Run("whose key has made another charge, which has the payment", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.append(f.accept("ch_2", bare()), domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"})
		f.exec(`delete from inbox`)
		f.accept("ch_1", bare())
		f.deliver("create/0:succeeded", "done")
		f.expect("charge.requested payment.declined charge.failed", "mug 5 0 0, tshirt 10 0 0", "charge.failed", "done")
	})
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ lost, then, more, stock, announced string }{
		"a capture after the message was taken over is refused as a whole": {
			"confirm/3:succeeded^takeover", "retrieve:succeeded", " payment.captured charge.succeeded", sold, "charge.succeeded",
		},
		"a failure after the message was taken over is refused as a whole": {
			"confirm/3:declined cancel:canceled^takeover", "retrieve:canceled", " payment.declined inventory.released charge.failed", returned, "charge.failed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.accept("ch_1", order())
			f.deliver(creates+test.lost, "lost")
			f.expect(toStarted, held, "", "running")
			f.deliver(test.then, "done")
			f.expect(toStarted+test.more, test.stock, test.announced, "done")
		})
	}
}

func TestCharge_eightHoldersComeToOneOutcome(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	p := newProvider(t)
	f.charge = f.handler(fulfillment.Services{Provider: newClient(t, p.URL)}, fulfillment.ChargeReceiver)
	s := f.accept("ch_1", order())
	for i := range 7 {
		f.put(fulfillment.ChargeReceiver, s, strconv.Itoa(i))
	}
	f.exec(`update inbox set ordering_key = message_id, first = true`) // messages of one key never run side by side
	aside := func(ctx context.Context, d *inbox.Delivery) error {
		d.OrderingKey = "ch_1"
		return f.charge(ctx, d)
	}
	for open := 8; open > 0; { // at least one of them ends each time
		waiting := 0
		for _, err := range f.deliverAll(fulfillment.ChargeReceiver, aside, open) {
			if end := endOf(err); end == "waits" {
				waiting++
			} else if end != "done" {
				t.Fatalf("a holder returned %v", err)
			}
		}
		if waiting == open {
			t.Fatal("no holder came to an end")
		}
		open = waiting
	}
	f.expect(paid, sold, "charge.succeeded", "done done done done done done done done")
	if taken := p.records(t).Captures; len(taken) != 1 {
		t.Errorf("the provider's captures are %+v, want one", taken)
	}
}

// TestUnknownOutcome is about a commit that was cut: it may be durable or not, and a standby may have it or not.
// The inbox delivers the message again, and nothing is done before.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.accept("ch_1", order())
	f.deliver("create/0:succeeded", "done")
	f.request()
	f.exec(`
create function cut() returns trigger language plpgsql security definer as $$
begin
  perform pg_terminate_backend(pg_backend_pid());
  perform pg_sleep(10);
end $$`)
	f.exec(`create trigger cut before insert on ledger_events for each row when (new.type = 'refund.succeeded.v1') execute function cut()`)
	f.script.expect("refunds: refund/0:succeeded")
	if err := f.deliverAll(fulfillment.ChargeReceiver, f.charge, 1)[0]; !errors.Is(err, groupcommit.ErrUnknown) {
		t.Errorf("the handler returned %v, want an unknown outcome", err)
	}
	f.exec(`drop trigger cut on ledger_events`)
	f.deliver("refunds:succeeded", "done")
	f.expect(refunded, sold, "charge.succeeded refund.succeeded", "done done")
}

// TestCharge_historyLostInAFailover is about a step that was decided on events which an asynchronous standby
// did not have when it became the primary.
func TestCharge_historyLostInAFailover(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first   domain.ChargeRequested
		version int // above which nothing is left
		calls   string
		end     string
		events  string
	}{
		"commits nothing on a stream without its history and waits": {bare(), 0, creates + "confirm/2:succeeded^failover", "waits", ""},
		"continues from the events that are left": {
			order(), 1, creates + "confirm/3:succeeded^failover", "done", paid,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.accept("ch_1", test.first)
			f.script.rival = func(string) { f.failOver(test.version) }
			f.deliver(test.calls, test.end)
			f.expectText(test.events, `select string_agg(split_part(type, '.v', 1), ' ' order by version) from ledger_events`)
			f.expectText("0", `select count(*)::text from inbox where receiver = 'notification' and message_id not in (select event_id::text from ledger_events)`)
		})
	}
}

// failOver removes what the new primary does not have: the events above a version and what was committed
// with them.
func (f *fixture) failOver(version int) {
	f.t.Helper()
	b := &pgx.Batch{}
	b.Queue(`select set_config('session_replication_role', 'replica', true)`)
	b.Queue(`delete from ledger_events where version > ` + strconv.Itoa(version))
	b.Queue(`delete from ledger_postings where version > ` + strconv.Itoa(version))
	b.Queue(`delete from reservations`)
	b.Queue(`update stock set available = available + reserved, reserved = 0`)
	f.commit(b)
}

// TestCharge_waitsForAStreamThatIsReadTooEarly lets the worker read a server that is behind the one that it
// received the message from: a snapshot of before the refund.
func TestCharge_waitsForAStreamThatIsReadTooEarly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.accept("ch_1", order())
	f.deliver("create/0:succeeded", "done")
	behind, err := f.db.Pool().BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	testdb.Must(t, err)
	defer func() { _ = behind.Rollback(context.WithoutCancel(t.Context())) }()
	var events int // the snapshot is taken by the first statement
	testdb.Must(t, behind.QueryRow(t.Context(), `select count(*) from ledger_events`).Scan(&events))
	f.request()
	late := fulfillment.New(f.db, fulfillment.Services{Provider: f.script}, slog.New(slog.DiscardHandler))
	late.ReadFrom(behind)
	if err := f.deliverAll(fulfillment.ChargeReceiver, handlerOf(late, fulfillment.ChargeReceiver), 1)[0]; endOf(err) != "waits" {
		t.Errorf("the handler returned %v", err)
	}
	f.deliver("refunds:succeeded", "done")
	f.expect(refunded, sold, "charge.succeeded refund.succeeded", "done done")
}

// TestRefund_endsWithTheProvidersEvent: its own message, which has another key, does not wait for its next read.
func TestRefund_endsWithTheProvidersEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.accept("ch_1", order())
	f.deliver("create/0:succeeded", "done")
	f.request()
	f.deliver("refunds: refund/0:pending", "polls")
	f.exec(`update inbox set due_at = clock_timestamp() + interval '4 hours' where status = 'pending'`)
	f.script.expect("refunds:succeeded")
	b := &pgx.Batch{}
	inbox.Append(b, fulfillment.ChargeReceiver, inbox.Message{ID: "evt_1", Type: "stripe.refund.updated", OrderingKey: "ch_1", Payload: []byte("{}")})
	f.commit(b)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		_ = processor(f.db, fulfillment.ChargeReceiver, f.charge, func(*inbox.Options) {}).Run(ctx)
		close(ended)
	}()
	defer func() { stop(); <-ended }()
	await.Row(t, f.db, `select bool_and(status = 'done') and count(*) = 4 from inbox where receiver = 'fulfillment'`)
	f.expectText("ended:re_1 refund.ended re_1 acme",
		`select concat_ws(' ', message_id, type, ordering_key, partition_key) from inbox where receiver = 'fulfillment' order by id desc limit 1`)
	f.expect(refunded, sold, "charge.succeeded refund.succeeded", "done done done done")
}
