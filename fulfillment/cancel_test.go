package fulfillment_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/testdb"
)

// The ends of a charge that was canceled before and after its payment started.
func canceledEarly() snapshot {
	return failed(toReserved+cancelAsk+" inventory.released charge.failed", domain.Canceled)
}

func canceledLate() snapshot { return failed(toStarted+cancelAsk+declined, domain.Canceled) }

// isCanceling is a charge whose payment has started and whose cancellation is requested.
func isCanceling(f *fixture) { f.start(); f.cancel() }

func TestCancel(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	scenarios := map[string]scenario{
		"before the first step nothing is undone and the provider is not called": {
			begin: func(f *fixture) { f.accept("ch_1", order()); f.cancel() },
			want: snapshot{
				Events:  "charge.requested charge.cancel_requested charge.failed",
				Failure: domain.Canceled, Stock: untouched, Announced: "charge.failed", Message: "done",
			},
		},
		"before the payment started the stock is released and the provider is not called": {
			begin: func(f *fixture) {
				f.accept("ch_1", order())
				f.provider.on("create", cut)
				f.expectEnd(f.deliver(), "waits")
				f.expectCalls("create")
				f.cancel()
			},
			want: canceledEarly(),
		},
		"the intent is canceled before the charge fails": {
			begin: func(f *fixture) { isCanceling(f); f.cancelsFirst() }, want: canceledLate(), calls: "cancel",
		},
		"if the money was taken the cancel has lost": {
			begin: isCanceling, script: script{"cancel": {unexpected("succeeded")}}, want: succeeded(toStarted + cancelAsk), calls: "cancel",
		},
		"if the money is on its way the charge waits for it": {
			begin: isCanceling, script: script{"cancel": {unexpected("processing"), unexpected("succeeded")}},
			ends: "waits done", want: succeeded(toStarted + cancelAsk), calls: "cancel cancel",
		},
		"a holder that dies between cancel and commit is taken over": {
			begin: func(f *fixture) {
				isCanceling(f)
				f.provider.on("cancel", f.takeOver(shows("canceled")), unexpected("canceled"))
			},
			ends: "lost done", want: canceledLate(), calls: "cancel cancel",
		},
	}
	for name, answer := range map[string]http.HandlerFunc{
		"a cut":                    cut,
		"a 500":                    breaks(),
		"an intent that is open":   shows("requires_action"),
		"an answer of another one": shows("canceled", "id", "pi_2"),
		"money on its way":         unexpected("processing"),
	} {
		scenarios["a cancel that ends in "+name+" does not fail the charge"] = scenario{
			begin: isCanceling, script: script{"cancel": {answer, shows("canceled")}}, ends: "waits done", want: canceledLate(), calls: "cancel cancel",
		}
	}
	runAll(t, scenarios)
}

// TestCancel_in_the_middle cancels while a provider call of the charge is in flight.
func TestCancel_in_the_middle(t *testing.T) {
	t.Parallel()
	during := func(begin func(*fixture), op string, answer http.HandlerFunc, then script, want snapshot, calls string) scenario {
		return scenario{
			begin:  func(f *fixture) { begin(f); f.provider.on(op, f.rival(answer, domain.ChargeCancelRequested{})) },
			script: then, want: want, calls: calls,
		}
	}
	runAll(t, map[string]scenario{
		"of a creation that is refused: the charge was canceled first": during(
			isAccepted, "create", refuses(http.StatusBadRequest, "invalid_request_error", "resource_missing"), nil, canceledEarly(), "create"),
		"of a confirmation that took the money: the cancel has lost": during(isStarted, "confirm", shows("succeeded"),
			script{"retrieve": {shows("requires_confirmation")}, "cancel": {unexpected("succeeded")}},
			succeeded(toStarted+cancelAsk), "retrieve confirm cancel"),
		"of a confirmation that was declined: the charge is canceled": during(isStarted, "confirm", declines(),
			script{"retrieve": {shows("requires_confirmation")}, "cancel": {shows("canceled"), unexpected("canceled")}},
			canceledLate(), "retrieve confirm cancel cancel"),
		"of a look at a payment that succeeded: the cancel has lost": during(isStarted, "retrieve", shows("succeeded"),
			script{"cancel": {unexpected("succeeded")}}, succeeded(toStarted+cancelAsk), "retrieve cancel"),
	})
}

// TestCancel_refusesALateConfirmation is about what comes too late: a worker that lost its
// message, or a request that was in flight for long.
func TestCancel_refusesALateConfirmation(t *testing.T) {
	t.Parallel()
	runAll(t, map[string]scenario{
		"a confirmation of a canceled charge is refused by the provider": {
			begin: func(f *fixture) {
				f.useSandbox()
				f.accept("ch_1", order())
				f.provider.on("confirm", cut) // it is in flight somewhere
				f.expectEnd(f.deliver(), "waits")
				f.cancel()
			},
			want: canceledLate(), calls: "create confirm cancel",
			check: func(f *fixture) {
				s := f.load("ch_1")
				_, err := f.client.ConfirmIntent(f.t.Context(), s.At(s.Charge.AttemptVersion).ID.String(), s.Charge.PaymentIntent, "")
				rejected, ok := errors.AsType[*stripe.RejectedError](err)
				if !ok || rejected.Code != stripe.CodeUnexpectedState {
					f.t.Errorf("the late confirmation was answered %v, want that the intent's state refuses it", err)
				}
				f.expectIntent("canceled")
			},
		},
		"an intent that was made and not recorded is never confirmed": {
			begin: func(f *fixture) {
				f.useSandbox()
				f.accept("ch_1", order())
				f.provider.on("create", f.rival(f.provider.sandbox.ServeHTTP, domain.ChargeCancelRequested{}))
			},
			want: canceledEarly(), calls: "create", check: func(f *fixture) { f.expectIntent("requires_confirmation") },
		},
	})
}

// cancelsFirst has the provider cancel the intent, and checks that the charge has not failed before.
func (f *fixture) cancelsFirst() {
	f.provider.on("cancel", meanwhile(func() {
		if f.load("ch_1").Charge.Terminal() {
			f.t.Error("the charge failed before its intent was canceled")
		}
	}, shows("canceled")))
}

// expectIntent checks that the provider captured nothing, and the state of its first intent.
func (f *fixture) expectIntent(status string) {
	f.t.Helper()
	if r := f.provider.records(f.t); len(r.Captures) != 0 || r.Intents[0].Status != status {
		f.t.Errorf("the provider's records are %+v, want one intent that is %s", r, status)
	}
}
