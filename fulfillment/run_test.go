package fulfillment_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// A step or a subscriber that only one of the two packages lists would never run.
func TestSteps_matchTheDomain(t *testing.T) {
	t.Parallel()
	steps, subscribers := fulfillment.StepsAndSubscribers()
	if !slices.Equal(steps, domain.Steps()) || !slices.Equal(subscribers, domain.Subscribers()) {
		t.Errorf("fulfillment runs %v and %v, domain has %v and %v", steps, subscribers, domain.Steps(), domain.Subscribers())
	}
}

// TestOnStep: a step that found its work done is reported as such, and one that panics is
// reported too.
func TestOnStep(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var reported []string
	observed := func(services fulfillment.Services) inbox.Handler {
		observed := fulfillment.New(f.db, services, slog.New(slog.DiscardHandler))
		observed.OnStep = func(ctx context.Context, step string) (context.Context, func(bool, error)) {
			return ctx, func(worked bool, err error) {
				reported = append(reported, fmt.Sprint(step, " ", worked, " ", err != nil))
			}
		}
		return handlerOf(observed, fulfillment.ChargeReceiver)
	}
	panicking := observed(fulfillment.Services{}) // without a provider, which payment calls
	f.accept("ch_1", order())
	err := f.deliverAll(fulfillment.ChargeReceiver, func(ctx context.Context, d *inbox.Delivery) (err error) {
		defer func() { err = fmt.Errorf("panic: %v", recover() != nil) }()
		return panicking(ctx, d)
	}, 1)[0]
	f.expectEnd(err, "panic: true")
	f.charge = observed(fulfillment.Services{Provider: f.client})
	f.provider.on("create", shows("requires_confirmation"))
	f.provider.on("confirm", shows("succeeded"))
	f.expectEnd(f.deliver(), "done")
	f.append(f.load("ch_1"), domain.RefundRequested{RefundID: "re_1", Amount: 600}, refundedBy())
	f.event("evt_1", "refund.updated")
	f.provider.on("refunds", lists(refundOf("succeeded")))
	f.expectEnd(f.deliver(), "done")
	want := []string{"inventory true false", "payment true true", "payment true false", "payment true false", "refund false false"}
	testrun.Same(t, "the steps, whether they worked and failed", want, reported)
}

// A stream that Append refuses, such as one without its last events, must not look
// processed.
func TestCharge_withoutOutcomeIsNotDone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.append(f.accept("ch_1", order()), domain.InventoryRejected{Code: domain.OutOfStock})
	f.expectEnd(f.deliver(), "payment: charge ch_1 has no outcome after its last step")
	f.expectText("pending", `select status from inbox`)
}

func TestProviderEvent(t *testing.T) {
	t.Parallel()
	woken := func(f *fixture) {
		f.start()
		f.exec(`delete from inbox`)
		f.event("evt_1", "payment_intent.succeeded")
	}
	scenarios := map[string]scenario{
		"an event wakes the charge up": {
			begin: woken, script: script{"retrieve": {shows("succeeded")}}, want: succeeded(toStarted), calls: "retrieve",
		},
		"what an event says is not believed": {
			begin: woken, script: script{"retrieve": {shows("processing")}}, ends: "waits", want: open(toStarted, "pending"), calls: "retrieve",
		},
		"an event of a charge that is not ours is done with one line in the log": {
			begin: func(f *fixture) { woken(f); f.exec(`update inbox set ordering_key = 'ch_2'`) },
			want:  open(toStarted, "done"),
			check: func(f *fixture) {
				if log := f.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "charge_id=ch_2") || !strings.Contains(log, "message_id=evt_1") {
					f.t.Errorf("the log is:\n%s", log)
				}
			},
		},
	}
	for _, name := range []string{"payment_intent.succeeded", "payment_intent.payment_failed", "charge.refunded", "refund.failed"} {
		scenarios[name+" of a finished charge adds no event"] = scenario{
			begin: func(f *fixture) { f.capture(order()); f.event("evt_1", name) }, script: script{"refunds": {lists()}},
			want: back("", "", "done"), calls: map[bool]string{true: "refunds"}[strings.Contains(name, "refund")],
		}
	}
	runAll(t, scenarios)
}

// TestWait_longerThanGiveUpAfter is about waits that are longer than GIVE_UP_AFTER.
func TestWait_longerThanGiveUpAfter(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		begin  func(*fixture)
		op     string
		answer http.HandlerFunc
		status string
	}{
		"a payment that is processing is waited for":                        {isStarted, "retrieve", shows("processing"), "pending"},
		"a payment that is processing and was to be canceled is waited for": {isCanceling, "cancel", unexpected("processing"), "pending"},
		"a refund that is pending is waited for":                            {isOlder, "refunds", lists(refundOf("pending")), "pending"},
		"a refund that needs the customer is waited for":                    {isOlder, "refunds", lists(refundOf("requires_action")), "pending"},
		"a provider that is out of reach is given up":                       {isOlder, "refunds", cut, "dead"},
		"an intent that does not let itself be canceled is given up":        {isCanceling, "cancel", shows("requires_action"), "dead"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			tc.begin(f)
			f.provider.on(tc.op, tc.answer, tc.answer)
			for range 2 {
				f.expectEnd(f.deliver(), "waits")
				f.exec(`update inbox set waiting_since = waiting_since - interval '1 week'`)
			}
			f.expectText(tc.status, `select status from inbox`)
		})
	}
}

// TestRetry_ofADeadLetterWhoseWorkIsDone: another message has done the work since.
func TestRetry_ofADeadLetterWhoseWorkIsDone(t *testing.T) {
	t.Parallel()
	retried := func(want snapshot) func(*fixture) {
		return func(f *fixture) {
			f.event("evt_1", "payment_intent.succeeded")
			f.expectEnd(f.deliver(), "done")
			f.provider.take()
			dead, err := inbox.List(f.t.Context(), f.db, inbox.StatusDead, 0, 10)
			if err != nil || len(dead) != 1 {
				f.t.Fatalf("%d messages are dead letters: %v", len(dead), err)
			}
			testdb.Must(f.t, inbox.Retry(f.t.Context(), f.db, dead[0].Number, "ann"))
			f.expectEnd(f.deliver(), "done")
			want.Message = "done done"
			f.expect(want, "")
		}
	}
	runAll(t, map[string]scenario{
		"a charge that ended meanwhile is done at once when it is retried, without a call of the provider": {
			begin: isStarted, script: script{"retrieve": {shows("requires_capture"), shows("succeeded")}},
			ends: "dead", want: open(toStarted, "dead"), calls: "retrieve", check: retried(succeeded(toStarted)),
		},
	})
}

// TestOutcome_continuesTheTrace: of the metadata of the message before it, the message
// about an outcome has the trace and the correlation, and nothing else.
func TestOutcome_continuesTheTrace(t *testing.T) {
	t.Parallel()
	for name, received := range map[string]map[string]string{
		"a trace":  {"correlation_id": "req_1", "traceparent": "t1", "tracestate": "private", "baggage": "private"},
		"no trace": {"correlation_id": "req_1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			s := f.start()
			f.exec(`update inbox set metadata = $1`, received)
			f.provider.on("retrieve", shows("succeeded"))
			f.expectEnd(f.deliver(), "done")
			got := testdb.One[map[string]string](t, f.db, `select metadata from inbox where receiver = 'notification'`)
			want := map[string]string{
				"correlation_id": "req_1", "causation_id": s.At(1).ID.String(), "ordering_key": "ch_1", "type": "charge.succeeded.v1", "partition_key": "acme",
			}
			if trace := received["traceparent"]; trace != "" {
				want["traceparent"] = trace
			}
			testrun.Same(t, "metadata", want, got)
		})
	}
}

// TestForgedRequest is about requests that no api would have accepted, and that its database
// refuses. They are void: they change nothing, and keep nothing from its outcome.
func TestForgedRequest(t *testing.T) {
	t.Parallel()
	const (
		huge       = `{"refund_id":"re_1","amount":100000000000000000,"notify":true}`
		unreadable = `{"refund_id":"re_1","amount":1,"reason":5}`
	)
	whole := func(f *fixture) {
		f.expectPosted("merchant_payable -1909, psp_receivable 1999")
		if c := f.load("ch_1").Charge; c.Refundable() != 1999 || len(c.Refunds) != 0 {
			f.t.Errorf("%d left, refunds %+v", c.Refundable(), c.Refunds)
		}
	}
	pending := func(name, data, events string) scenario {
		want := succeeded(toStarted + events)
		want.Message = "done done"
		return scenario{
			begin: func(f *fixture) { f.forge(f.start(), name, data) }, script: script{"retrieve": {shows("succeeded")}},
			ends: "done done", want: want, calls: "retrieve", check: whole,
		}
	}
	captured := func(name, data, events string) scenario {
		return scenario{
			begin: func(f *fixture) { f.forge(f.capture(order()), name, data) }, want: back(events, "", "done"), check: whole,
		}
	}
	runAll(t, map[string]scenario{
		"a refund of 10^17 of a pending charge":             pending("refund.requested.v1", huge, asked),
		"a refund of a pending charge that cannot be read":  pending("refund.requested.v1", unreadable, asked),
		"a refund of more than was captured":                captured("refund.requested.v1", huge, asked),
		"a refund of a captured charge that cannot be read": captured("refund.requested.v1", unreadable, asked),
		"a cancellation after the outcome":                  captured("charge.cancel_requested.v1", `{}`, cancelAsk),
		"a second first event":                              captured("charge.requested.v1", `{"merchant_id":"acme","amount":1,"currency":"EUR"}`, " charge.requested"),
		"a second cancellation": {
			begin: func(f *fixture) {
				f.accept("ch_1", order())
				f.cancel()
				f.forge(f.load("ch_1"), "charge.cancel_requested.v1", `{}`)
			},
			ends: "done done",
			want: snapshot{
				Events: "charge.requested" + cancelAsk + cancelAsk + " charge.failed", Failure: domain.Canceled,
				Stock: untouched, Announced: "charge.failed", Message: "done done",
			},
		},
		"a refund after a void one is paid": {
			begin: func(f *fixture) {
				f.forge(f.capture(order()), "refund.requested.v1", huge)
				f.request(f.load("ch_1"), "re_2", 600)
			},
			script: script{"refunds": {lists()}, "refund": {gives("succeeded", "id", "rp_2", "metadata", map[string]any{"refund_id": "re_2"})}},
			ends:   "done done", want: back(asked+refunded, "refund.succeeded", "done done"), calls: "refunds refund",
			check: func(f *fixture) { f.expectPosted("merchant_payable -1309, psp_receivable 1399") },
		},
	})
}

// TestForgedRequest_thatOpensACharge: no merchant has such a charge. Its message becomes a dead
// letter, and that of another charge is done.
func TestForgedRequest_thatOpensACharge(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{
		"of more than may be charged": `{"merchant_id":"acme","order_id":"1","amount":1000000000001,"currency":"EUR"}`,
		"that cannot be read":         `{"merchant_id":"acme","order_id":"1","amount":"much","currency":"EUR"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.forge(ledger.New("ch_forged"), "charge.requested.v1", data)
			f.expectEnd(f.deliver(), "dead")
			f.start()
			f.provider.on("retrieve", shows("succeeded"))
			f.expectEnd(f.deliver(), "done")
			f.expectText("dead done", `select string_agg(status, ' ' order by id) from inbox where receiver = 'fulfillment'`)
			f.expectCalls("retrieve")
		})
	}
}
