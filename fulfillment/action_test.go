package fulfillment_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
)

// The histories of a charge whose payment needs the customer.
const (
	toActing = toStarted + " payment.action_required"
	page     = "https://bank.example/3ds"
)

func redirects() http.HandlerFunc {
	return shows("requires_action", "next_action", map[string]any{"type": "redirect_to_url", "redirect_to_url": map[string]any{"url": page}})
}

// interactive is an order whose customer can be sent to a page.
func interactive() domain.ChargeRequested {
	first := order()
	first.PaymentMethod, first.ReturnURL = "pm_card_authenticationRequired", "https://shop.example/back"
	return first
}

// isActing is a charge that waits for its customer for so long.
func isActing(f *fixture, timeout time.Duration) {
	f.t.Helper()
	f.useSandbox()
	f.charge = f.handler(fulfillment.Services{Provider: f.client, ActionTimeout: timeout}, fulfillment.ChargeReceiver)
	f.accept("ch_1", interactive())
	f.expectEnd(f.deliver(), "waits")
	f.expectCalls("create confirm")
}

// authenticate does what the customer does on the provider's page.
func (f *fixture) authenticate(outcome string) {
	f.t.Helper()
	answered, page := httptest.NewRecorder(), "/authenticate/"+f.load("ch_1").Charge.PaymentIntent+"?outcome="+outcome
	f.provider.sandbox.ServeHTTP(answered, httptest.NewRequestWithContext(f.t.Context(), http.MethodPost, page, nil))
	if answered.Code != http.StatusSeeOther {
		f.t.Fatalf("%s: answered %d %s", page, answered.Code, answered.Body)
	}
}

// announced is an outcome after the webhook about the action.
func announced(s snapshot) snapshot {
	s.Announced = "payment.action_required " + s.Announced
	return s
}

func TestAction(t *testing.T) {
	t.Parallel()
	timedOut := announced(failed(toActing+declined, domain.AuthenticationTimeout))
	runAll(t, map[string]scenario{
		"the webhook names where the customer acts": {
			begin:  func(f *fixture) { f.startOf(interactive()) },
			script: script{"retrieve": {redirects()}}, ends: "waits", calls: "retrieve",
			want: snapshot{Events: toActing, Stock: held, Holds: "open open", Announced: "payment.action_required", Message: "pending"},
			check: func(f *fixture) {
				view := f.load("ch_1").View()
				if view.Status != domain.RequiresAction || view.NextAction == nil || *view.NextAction != (domain.NextAction{Type: "redirect_to_url", URL: page}) {
					f.t.Errorf("the charge is %s with the action %+v", view.Status, view.NextAction)
				}
				f.expectText("true", `
select ((e.data ->> 'expires_at')::timestamptz between e.recorded_at + interval '59 minutes' and e.recorded_at + interval '1 hour'
       and i.due_at < clock_timestamp() + interval '1 minute' and i.waiting_since is null)::text
  from ledger_events e, inbox i
 where e.type = 'payment.action_required.v1' and i.receiver = 'fulfillment'`)
			},
		},
		"a customer who authenticates is charged": {
			begin: func(f *fixture) { isActing(f, time.Hour); f.authenticate("succeeded") },
			want:  announced(succeeded(toActing)), calls: "retrieve", check: func(f *fixture) { f.expectCaptures(1) },
		},
		"a customer who fails is declined": {
			begin: func(f *fixture) { isActing(f, time.Hour); f.authenticate("failed") },
			want:  announced(failed(toActing+declined, domain.AuthenticationRequired)), calls: "retrieve cancel",
			check: func(f *fixture) { f.expectIntent("canceled") },
		},
		"a customer who has not acted is waited for, and announced once": {
			begin: func(f *fixture) { isActing(f, time.Hour) }, ends: "waits waits", calls: "retrieve retrieve",
			want: snapshot{Events: toActing, Stock: held, Holds: "open open", Announced: "payment.action_required", Message: "pending"},
		},
		"a customer who takes too long has the stock returned": {
			begin: func(f *fixture) { isActing(f, time.Millisecond) },
			want:  timedOut, calls: "cancel", check: func(f *fixture) { f.expectIntent("canceled") },
		},
		"a capture before the time-out wins": {
			begin: func(f *fixture) { isActing(f, time.Millisecond); f.authenticate("succeeded") },
			want:  announced(succeeded(toActing)), calls: "cancel", check: func(f *fixture) { f.expectCaptures(1) },
		},
		"a worker that dies after the confirmation is taken over": {
			begin: func(f *fixture) {
				f.useSandbox()
				f.accept("ch_1", interactive())
				f.provider.on("confirm", f.provider.cutAfter)
				f.expectEnd(f.deliver(), "waits")
				f.authenticate("succeeded")
			},
			want: succeeded(toStarted), calls: "create confirm retrieve",
		},
		"a page that no customer can be sent to is a decline": {
			begin:  func(f *fixture) { f.startOf(interactive()) },
			script: script{"retrieve": {shows("requires_action", "next_action", map[string]any{"type": "use_stripe_sdk"})}, "cancel": {shows("canceled")}},
			want:   failed(toStarted+declined, domain.AuthenticationRequired), calls: "retrieve cancel",
		},
	})
}

// TestDeadline is about charges whose expires_at has passed.
func TestDeadline(t *testing.T) {
	t.Parallel()
	expired := func() domain.ChargeRequested {
		first := order()
		first.ExpiresAt = time.Now().Add(-time.Minute)
		return first
	}
	isLate := func(f *fixture) { f.startOf(expired()) }
	runAll(t, map[string]scenario{
		"before the first step nothing is undone and the provider is not called": {
			begin: func(f *fixture) { f.accept("ch_1", expired()) },
			want:  snapshot{Events: "charge.requested charge.failed", Failure: domain.Expired, Stock: untouched, Announced: "charge.failed", Message: "done"},
		},
		"the intent is canceled before the charge fails": {
			begin: isLate, script: script{"cancel": {shows("canceled")}}, want: failed(toStarted+declined, domain.Expired), calls: "cancel",
		},
		"a capture before the deadline wins": {
			begin: isLate, script: script{"cancel": {unexpected("succeeded")}}, want: succeeded(toStarted), calls: "cancel",
		},
		"if the money is on its way the charge waits for it": {
			begin: isLate, script: script{"cancel": {unexpected("processing"), unexpected("succeeded")}},
			ends: "waits done", want: succeeded(toStarted), calls: "cancel cancel",
		},
		"a charge whose deadline has not come is charged": {
			begin: func(f *fixture) {
				first := order()
				first.ExpiresAt = time.Now().Add(time.Hour)
				f.startOf(first)
			},
			script: script{"retrieve": {shows("succeeded")}}, want: succeeded(toStarted), calls: "retrieve",
		},
	})
}
