package fulfillment_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// cancel asks to cancel the charge, as the api does.
func (w *world) cancel(s ledger.Stream) ledger.Stream {
	w.Helper()
	return w.append(s, domain.ChargeCancelRequested{})
}

const wanted = " charge.cancel_requested"

// canceled is a charge that failed because the merchant wanted it to.
func canceled(events string) sight {
	s := sight{
		Events: events, Failure: domain.Canceled, Stock: untouched, Outbox: "charge.failed", Message: "done",
	}
	return s
}

// released is a canceled charge that had held stock.
func released(events string) sight {
	s := canceled(events)
	s.Holds = "released released"
	return s
}

func TestCancel(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()

	t.Run("before anything happened nothing is undone and nobody is asked", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cancel(w.accept("ch_1", order()))
		w.expectKind(w.deliver(), "done")
		w.expect(canceled("charge.requested"+wanted+" charge.failed"), "")
		if c := w.load().Charge; c.Step(domain.Inventory) != domain.StepSkipped || c.Step(domain.Payment) != domain.StepSkipped {
			t.Errorf("inventory is %s and payment %s, want both skipped", c.Step(domain.Inventory), c.Step(domain.Payment))
		}
	})

	t.Run("before the payment started the stock is given back and nobody is asked", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.accept("ch_1", order())
		w.provider.on("create", cut)
		w.expectKind(w.deliver(), "waits")
		w.expectCalls("create")
		w.cancel(w.load())
		w.expectKind(w.deliver(), "done")
		w.expect(released(toReserved+wanted+" inventory.released charge.failed"), "")
	})

	t.Run("the intent is canceled before the charge fails", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cancel(w.start())
		w.provider.on("cancel", meanwhile(func() {
			if w.load().Charge.Terminal() {
				t.Error("the charge failed before its intent was canceled")
			}
		}, shows("canceled")))
		w.expectKind(w.deliver(), "done")
		w.expect(released(toStarted+wanted+declined), "cancel")
	})

	t.Run("the request's own message carries it too", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.cancel(w.start())
		w.exec(`delete from inbox`)
		w.put(fulfillment.ChargeReceiver, s, s.Charge.Version, s.Head().ID.String())
		w.provider.on("cancel", shows("canceled"))
		w.expectKind(w.deliver(), "done")
		w.expect(released(toStarted+wanted+declined), "cancel")
	})

	t.Run("if the money was taken the cancel has lost", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cancel(w.start())
		w.provider.on("cancel", unexpected("succeeded"))
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted+wanted), "cancel")
	})

	t.Run("if the money is on its way the charge waits for it", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cancel(w.start())
		w.provider.on("cancel", unexpected("processing"), unexpected("succeeded"))
		w.expectKind(w.deliver(), "waits")
		w.expect(open(toStarted+wanted, "pending"), "cancel")
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted+wanted), "cancel")
	})

	t.Run("if the money did not come after all the charge is canceled", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cancel(w.start())
		w.provider.on("cancel", unexpected("processing"), shows("canceled"))
		w.expectKind(w.deliver(), "waits")
		w.expectKind(w.deliver(), "done")
		w.expect(released(toStarted+wanted+declined), "cancel cancel")
	})

	for name, answer := range map[string]http.HandlerFunc{
		"a cut":                  cut,
		"a 503":                  refuses(http.StatusServiceUnavailable, "api_error", ""),
		"a 500":                  breaks(),
		"a lock held by another": refuses(http.StatusTooManyRequests, "invalid_request_error", "lock_timeout"),
		"an intent that is open": shows("requires_action"),
	} {
		t.Run("a cancel that ends in "+name+" does not fail the charge", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cancel(w.start())
			w.provider.on("cancel", answer, shows("canceled"))
			w.expectKind(w.deliver(), "waits")
			w.expect(open(toStarted+wanted, "pending"), "cancel")
			w.expectKind(w.deliver(), "done")
			w.expect(released(toStarted+wanted+declined), "cancel")
		})
	}

	t.Run("a holder that dies between cancel and commit is taken over", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cancel(w.start())
		w.provider.on("cancel", w.takeOver(shows("canceled")), unexpected("canceled"))
		w.expectKind(w.deliver(), "lost")
		w.expect(open(toStarted+wanted, "running"), "cancel")
		w.expectKind(w.deliver(), "done")
		w.expect(released(toStarted+wanted+declined), "cancel")
	})
}

// TestCancel_in_the_middle lets the merchant cancel while a provider call of the
// charge is under way.
func TestCancel_in_the_middle(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		during string
		answer http.HandlerFunc
		script map[string][]http.HandlerFunc // before the answer or after it
		begin  func(*world)
		want   sight
		calls  string
	}{
		"of a creation: the intent stays an orphan that nobody confirms": {
			during: "create", answer: shows("requires_confirmation"),
			begin: func(w *world) { w.accept("ch_1", order()) },
			want:  released(toReserved + wanted + " inventory.released charge.failed"), calls: "create",
		},
		"of a creation that is refused: the charge was canceled first": {
			during: "create", answer: refuses(http.StatusBadRequest, "invalid_request_error", "resource_missing"),
			begin: func(w *world) { w.accept("ch_1", order()) },
			want:  released(toReserved + wanted + " inventory.released charge.failed"), calls: "create",
		},
		"of a confirmation that took the money: the cancel has lost": {
			during: "confirm", answer: shows("succeeded"),
			script: map[string][]http.HandlerFunc{"retrieve": {shows("requires_confirmation")}, "cancel": {unexpected("succeeded")}},
			begin:  func(w *world) { w.start() },
			want:   succeeded(toStarted + wanted), calls: "retrieve confirm cancel",
		},
		"of a confirmation that was declined: the charge is canceled": {
			during: "confirm", answer: declines(),
			script: map[string][]http.HandlerFunc{"retrieve": {shows("requires_confirmation")}, "cancel": {shows("canceled"), unexpected("canceled")}},
			begin:  func(w *world) { w.start() },
			want:   released(toStarted + wanted + declined), calls: "retrieve confirm cancel cancel",
		},
		"of a look at a payment that succeeded: the cancel has lost": {
			during: "retrieve", answer: shows("succeeded"),
			script: map[string][]http.HandlerFunc{"cancel": {unexpected("succeeded")}},
			begin:  func(w *world) { w.start() },
			want:   succeeded(toStarted + wanted), calls: "retrieve cancel",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tc.begin(w)
			for op, answers := range tc.script {
				w.provider.on(op, answers...)
			}
			w.provider.on(tc.during, meanwhile(func() { w.cancel(w.load()) }, tc.answer))
			w.expectKind(w.deliver(), "done")
			w.expect(tc.want, tc.calls)
		})
	}
}

// TestCancel_fences is about those who come too late: a holder that lost its
// message, or a request that was under way for long.
func TestCancel_fences(t *testing.T) {
	t.Parallel()

	t.Run("a confirmation of a canceled charge is refused by the provider", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.provider.behind = newSandbox(t)
		w.accept("ch_1", order())
		w.provider.on("confirm", cut) // it is under way somewhere
		w.expectKind(w.deliver(), "waits")
		s := w.cancel(w.load())
		w.expectKind(w.deliver(), "done")
		w.expect(released(toStarted+wanted+declined), "create confirm cancel")
		_, err := w.client.ConfirmIntent(t.Context(), s.At(s.Charge.AttemptVersion).ID.String(), s.Charge.PaymentIntent)
		var rejected *stripe.RejectedError
		if !errors.As(err, &rejected) || rejected.Code != stripe.CodeUnexpectedState {
			t.Errorf("the late confirmation was answered %v, want that the intent's state refuses it", err)
		}
		if b := booksOf(t, w.provider.behind); len(b.Captures) != 0 || b.Intents[0].Status != "canceled" {
			t.Errorf("the provider's books are %+v, want one canceled intent", b)
		}
	})

	t.Run("an intent that was made and not recorded is never confirmed", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.provider.behind = newSandbox(t)
		w.accept("ch_1", order())
		w.provider.on("create", meanwhile(func() { w.cancel(w.load()) }, w.provider.behind.ServeHTTP))
		w.expectKind(w.deliver(), "done")
		w.expect(released(toReserved+wanted+" inventory.released charge.failed"), "create")
		if b := booksOf(t, w.provider.behind); len(b.Captures) != 0 || b.Intents[0].Status != "requires_confirmation" {
			t.Errorf("the provider's books are %+v, want an intent that nobody confirmed", b)
		}
	})
}
