package fulfillment_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestLostRace is about versions that another writer took between a run's read of the
// charge and its commit.
func TestLostRace(t *testing.T) {
	t.Parallel()
	unrelated := domain.RefundAttemptFailed{RefundID: "re_9", StatusCode: 500}
	confirmAttempt := domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500}
	success := domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600}
	capture := domain.PaymentCaptured{Provider: domain.Provider, PaymentIntent: "pi_1", Amount: 1999, Currency: "EUR", Fee: 90}
	// rival appends another writer's events while a call of the begun charge is in flight.
	rival := func(begin func(*fixture), op string, answer http.HandlerFunc, events ...domain.Event) func(*fixture) {
		return func(f *fixture) { begin(f); f.provider.on(op, f.rival(answer, events...)) }
	}
	runAll(t, map[string]scenario{
		"a capture whose attempt a rival has ended is recorded with the answer in hand": {
			begin:  rival(isStarted, "confirm", shows("succeeded"), confirmAttempt),
			script: script{"retrieve": {shows("requires_confirmation")}},
			want:   succeeded(toStarted + " payment.attempt_failed"), calls: "retrieve confirm",
		},
		// The rival leaves out the sale and the message: that they are missing shows that
		// the loser's commit brought nothing.
		"the loser of the outcome has nothing left to do": {
			begin:  rival(isStarted, "confirm", shows("succeeded"), capture, domain.ChargeSucceeded{}),
			script: script{"retrieve": {shows("requires_confirmation")}},
			want:   open(toStarted+" payment.captured charge.succeeded", "done"), calls: "retrieve confirm",
		},
		"the intent that was recorded first is the charge's": {
			begin:  rival(isAccepted, "create", shows("requires_confirmation"), domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_2"}),
			script: script{"retrieve": {shows("requires_confirmation", "id", "pi_2")}, "confirm": {shows("succeeded", "id", "pi_2")}},
			want:   succeeded(toStarted), calls: "create retrieve confirm",
			check: func(f *fixture) {
				for _, c := range f.provider.calls[1:] {
					if c.intent != "pi_2" {
						f.t.Errorf("%s was called for %s, want pi_2: it is the recorded one", c.op, c.intent)
					}
				}
			},
		},
		"a refused creation fails no charge whose payment a rival has started": {
			begin: rival(isAccepted, "create", refuses(http.StatusBadRequest, "invalid_request_error", "resource_missing"),
				domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"}),
			script: script{"retrieve": {shows("succeeded")}},
			want:   succeeded(toStarted), calls: "create retrieve",
		},
		"a decline that lost a race keeps its reason": {
			begin:  rival(isStarted, "cancel", shows("canceled"), unrelated),
			script: script{"retrieve": {shows("requires_confirmation")}, "confirm": {declines()}},
			want:   failed(toStarted+" refund.attempt_failed"+declined, domain.CardDeclined), calls: "retrieve confirm cancel",
		},
		// The next attempt's key may be in use already: another key would let the provider
		// do it twice.
		"an attempt of a payment that a rival has ended is not ended again": {
			begin:  rival(isStarted, "confirm", breaks(), confirmAttempt),
			script: script{"retrieve": {shows("requires_confirmation"), shows("requires_confirmation")}, "confirm": {shows("succeeded")}},
			want:   succeeded(toStarted + " payment.attempt_failed"), calls: "retrieve confirm retrieve confirm",
			check: func(f *fixture) { f.expectKeys("confirm", 3, 4) },
		},
		"an attempt of a refund that a rival has ended is not ended again": {
			begin:  rival(isRefunding, "refund", breaks(), domain.RefundAttemptFailed{RefundID: "re_1", StatusCode: 500}),
			script: script{"refunds": {lists()}, "refund": {gives("succeeded")}},
			want:   back(asked+" refund.attempt_failed refund.succeeded", "refund.succeeded", "done"), calls: "refunds refund refunds refund",
			check: func(f *fixture) { f.expectKeys("refund", 0, 1) },
		},
		"a refund that a rival has recorded is recorded once": {
			begin: rival(isRefunding, "refund", gives("succeeded"), success), want: back(refunded, "", "done"), calls: "refunds refund",
		},
		"a refund that lost the version to something else is recorded at once": {
			begin: rival(isRefunding, "refund", gives("succeeded"), unrelated),
			want:  back(asked+" refund.attempt_failed refund.succeeded", "refund.succeeded", "done"), calls: "refunds refund",
		},
	})
}

// TestLostRace_atEveryTry is about a stream that grows faster than the run decides: the message
// waits, counts no attempt, and nothing was sent twice.
func TestLostRace_atEveryTry(t *testing.T) {
	t.Parallel()
	lose := func(event string) func(*fixture) {
		return func(f *fixture) {
			if event == "payment.captured.v1" {
				f.start()
			} else {
				isRefunding(f)
			}
			f.loseEvery(event)
		}
	}
	then := func(want snapshot, calls string) func(*fixture) {
		return func(f *fixture) {
			f.expectText("0", `select attempts::text from inbox`)
			f.exec(`drop trigger lose on ledger_events`)
			f.expectEnd(f.deliver(), "done")
			f.expect(want, calls)
		}
	}
	runAll(t, map[string]scenario{
		"a refund": {
			begin: lose("refund.succeeded.v1"), script: script{"refund": {gives("succeeded")}, "refunds": {lists(refundOf("succeeded"))}},
			ends: "waits", want: back(asked, "", "pending"), calls: "refunds refund", check: then(back(refunded, "refund.succeeded", "done"), "refunds"),
		},
		"a payment": {
			begin: lose("payment.captured.v1"), script: script{"retrieve": {shows("succeeded"), shows("succeeded")}},
			ends: "waits", want: open(toStarted, "pending"), calls: "retrieve", check: then(succeeded(toStarted), "retrieve"),
		},
	})
	runNotices(t, map[string]notice{"a notification": {
		begin: func(s *shop) { s.succeed(order()); s.loseEvery("merchant.notified.v1") },
		ends:  "waits", received: 1, events: paid, message: "pending",
		check: func(s *shop) { s.expectText("0", `select attempts::text from inbox`) },
	}})
}

// loseEvery lets every commit of a type of event find its version taken.
func (f *fixture) loseEvery(event string) {
	f.t.Helper()
	f.exec(`
create function lose() returns trigger language plpgsql as $$
begin
  raise unique_violation using constraint = 'ledger_events_version_once';
end $$`)
	f.exec(`create trigger lose before insert on ledger_events for each row when (new.type = '` + event + `') execute function lose()`)
}

// TestUnknownOutcome is about a commit that was cut: it may be durable or not, and a standby
// may have it or not. The inbox delivers the message again, and nothing is done before.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	isRefunding(f)
	f.append(f.load("ch_1"), domain.RefundRequested{RefundID: "re_2", Amount: 100})
	f.exec(`
create function cut() returns trigger language plpgsql security definer as $$
begin
  perform pg_terminate_backend(pg_backend_pid());
  perform pg_sleep(10);
end $$`)
	f.exec(`create trigger cut before insert on ledger_events for each row when (new.type = 'refund.succeeded.v1') execute function cut()`)
	f.provider.on("refund", gives("succeeded"))
	if err := f.deliver(); !errors.Is(err, groupcommit.ErrUnknown) {
		t.Errorf("the handler returned %v, want an unknown outcome", err)
	}
	f.expectCalls("refunds refund")
	f.exec(`drop trigger cut on ledger_events`)
	f.provider.on("refunds", lists(refundOf("succeeded"), refundOf("succeeded", second()...)))
	f.expectEnd(f.deliver(), "done")
	f.expect(back(asked+refunded, "refund.succeeded", "done"), "refunds")
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	takenOver := func(op, answer string) func(*fixture) {
		return func(f *fixture) { f.start(); f.provider.on(op, f.takeOver(shows(answer))) }
	}
	runAll(t, map[string]scenario{
		"a capture after the message was taken over is refused as a whole": {
			begin: takenOver("confirm", "succeeded"), script: script{"retrieve": {shows("requires_confirmation"), shows("succeeded")}},
			ends: "lost done", want: succeeded(toStarted), calls: "retrieve confirm retrieve",
		},
		"a failure after the message was taken over is refused as a whole": {
			begin: takenOver("cancel", "canceled"), script: script{"retrieve": {shows("requires_action"), shows("canceled")}},
			ends: "lost done", want: failed(toStarted+declined, domain.ProviderRefused), calls: "retrieve cancel retrieve",
		},
	})

	t.Run("eight holders at once come to one outcome", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.useSandbox()
		s := f.accept("ch_1", order())
		for i := range 7 {
			f.put(fulfillment.ChargeReceiver, s, 1, strconv.Itoa(i))
		}
		f.exec(`update inbox set ordering_key = message_id`) // messages of one key never run side by side
		aside := func(ctx context.Context, d *inbox.Delivery) error {
			d.OrderingKey = "ch_1"
			return f.charge(ctx, d)
		}
		waiting := 8
		for range 8 { // at least one of them ends each time
			open := waiting
			waiting = 0
			for _, err := range f.deliverAll(fulfillment.ChargeReceiver, aside, open) {
				if err != nil {
					f.expectEnd(err, "waits")
					waiting++
				}
			}
			if waiting == 0 {
				break
			}
		}
		want := succeeded(toStarted)
		want.Message = "done done done done done done done done"
		testrun.Same(t, "afterwards", want, f.snapshot())
		f.expectCaptures(1)
	})
}

// TestCharge_historyLostInAFailover is about a step that was decided on events which an
// asynchronous standby did not have when it became the primary.
func TestCharge_historyLostInAFailover(t *testing.T) {
	const stream = `select string_agg(version || ' ' || type, ', ' order by version) from ledger_events`
	t.Parallel()

	t.Run("commits nothing on a stream without its history and waits", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		first := order()
		first.Items = nil // no constraint on stock refuses the commit
		f.append(f.accept("ch_1", first), domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_1"})
		f.provider.on("retrieve", shows("requires_confirmation"))
		f.provider.on("confirm", meanwhile(func() { f.failOver(0) }, shows("succeeded")))
		f.expectEnd(f.deliver(), "waits")
		f.expectCalls("retrieve confirm")
		f.expectText("", stream)
		f.expectText("0", `select count(*)::text from inbox where receiver = 'notification' and message_id not in (select event_id::text from ledger_events)`)
	})

	t.Run("continues from the events that are left", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		f.start()
		f.provider.on("retrieve", shows("requires_confirmation"))
		f.provider.on("confirm", meanwhile(func() { f.failOver(1) }, shows("succeeded")))
		f.provider.on("create", shows("succeeded")) // the same intent: its idempotency key is the same
		f.provider.on("retrieve", shows("succeeded"))
		f.expectEnd(f.deliver(), "done")
		f.expectText("1 charge.requested.v1, 2 inventory.reserved.v1, 3 payment.started.v1, 4 payment.captured.v1, 5 charge.succeeded.v1", stream)
	})
}

// failOver removes what the new primary does not have: the events above a version and what
// was committed with them.
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

// TestCharge_waitsForAStreamThatIsReadTooEarly lets the worker read a server that is
// behind the one that it received the message from: a snapshot of before the refund.
func TestCharge_waitsForAStreamThatIsReadTooEarly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.capture(order())
	behind, err := f.db.Pool().BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	testdb.Must(t, err)
	defer func() { _ = behind.Rollback(context.WithoutCancel(t.Context())) }()
	var events int // the snapshot is taken by the first statement
	testdb.Must(t, behind.QueryRow(t.Context(), `select count(*) from ledger_events`).Scan(&events))
	f.request(s, "re_1", 600)
	late := fulfillment.New(f.db, fulfillment.Services{Provider: f.client}, slog.New(slog.DiscardHandler))
	late.ReadFrom(behind)
	f.expectEnd(f.deliverAll(fulfillment.ChargeReceiver, handlerOf(late, fulfillment.ChargeReceiver), 1)[0], "waits")

	f.provider.on("refunds", lists(refundOf("succeeded")))
	f.expectEnd(f.deliver(), "done")
	f.expect(back(refunded, "refund.succeeded", "done"), "refunds")
}
