package fulfillment_test

import (
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
)

// interruptions are answers after which the provider may still execute the same key.
func interruptions() script {
	return script{
		"a cut":             {cut},
		"a key in flight":   {refuses(http.StatusConflict, "idempotency_error", "idempotency_key_in_use")},
		"too many requests": {refuses(http.StatusTooManyRequests, "invalid_request_error", "rate_limit")},
		"a gateway's 502":   {says(http.StatusBadGateway, "<html>")},
		"a 503":             {refuses(http.StatusServiceUnavailable, "api_error", "")},
	}
}

// keyRefusals are answers that end once an operator has mended the secret key.
func keyRefusals() script {
	return script{
		"a refused secret key": {refuses(http.StatusUnauthorized, "invalid_request_error", "")},
		"a test key":           {refuses(http.StatusNotFound, "invalid_request_error", "resource_missing", "message", "No such PaymentMethod: 'pm_1'; a similar object exists in live mode, but a test mode key was used to make this request.")},
		"a live card":          {refuses(http.StatusPaymentRequired, "card_error", "card_declined", "decline_code", "test_mode_live_card")},
	}
}

// retried are answers that do not count, by the ends of the attempts that meet them.
func retried() map[string]script {
	return map[string]script{"waits done": interruptions(), "blocked done": keyRefusals()}
}

const twoFailures = " payment.attempt_failed payment.attempt_failed"

func TestAttempt_create(t *testing.T) {
	t.Parallel()
	bare := order()
	bare.Items = nil
	scenarios := map[string]scenario{
		"an error of the provider is recorded and opens a new key": {
			begin:  isAccepted,
			script: script{"create": {breaks(), breaks(), shows("requires_confirmation")}, "confirm": {shows("succeeded")}},
			ends:   "waits waits done", want: succeeded(toReserved + twoFailures + " payment.started"), calls: "create create create confirm",
			check: func(f *fixture) {
				f.expectKeys("create", 0, 1, 2)
				f.expectKeys("confirm", 5)
				f.expectRecorded(3, domain.PaymentAttemptFailed{Stage: domain.StageCreate, StatusCode: 500, RequestID: "req_provider"})
			},
		},
		"without items the key is the id of the first event": {
			begin:  func(f *fixture) { f.accept("ch_1", bare) },
			script: script{"create": {shows("requires_confirmation")}, "confirm": {shows("succeeded")}},
			want:   back("", "charge.succeeded", "done"), calls: "create confirm",
			check: func(f *fixture) { f.expectKeys("create", 0) },
		},
		"a refused creation fails the charge, and there is nothing to cancel": {
			begin:  isAccepted,
			script: script{"create": {refuses(http.StatusBadRequest, "invalid_request_error", "resource_missing")}},
			want:   failed(toReserved+declined, domain.ProviderRefused), calls: "create",
			check: func(f *fixture) { f.expectFailure(domain.Failure{Code: domain.ProviderRefused, Message: "for people"}) },
		},
		"a declined creation fails the charge, and there is nothing to cancel": {
			begin:  isAccepted,
			script: script{"create": {refuses(http.StatusPaymentRequired, "card_error", "card_declined", "decline_code", "lost_card")}},
			want:   failed(toReserved+declined, domain.CardDeclined), calls: "create",
			check: func(f *fixture) {
				f.expectFailure(domain.Failure{Code: domain.CardDeclined, Message: "for people", DeclineCode: "lost_card"})
			},
		},
		"an intent that a declined creation has left is recorded, and canceled before the charge fails": {
			begin:  isAccepted,
			script: script{"create": {declines()}, "cancel": {shows("canceled")}},
			want:   failed(toStarted+declined, domain.CardDeclined), calls: "create cancel",
		},
	}
	for ends, answers := range retried() {
		for name, answer := range answers {
			scenarios[name+" records nothing and keeps the key"] = scenario{
				begin:  isAccepted,
				script: script{"create": {answer[0], shows("requires_confirmation")}, "confirm": {shows("succeeded")}},
				ends:   ends, want: succeeded(toStarted), calls: "create create confirm",
				check: func(f *fixture) { f.expectKeys("create", 0, 0) },
			}
		}
	}
	runAll(t, scenarios)
}

func TestAttempt_confirm(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	attemptFailed := toStarted + " payment.attempt_failed"
	scenarios := map[string]scenario{
		"an error of the provider opens a new key, after a look at the intent": {
			begin:  isStarted,
			script: script{"retrieve": {shows("requires_confirmation"), shows("requires_confirmation")}, "confirm": {breaks(), shows("succeeded")}},
			ends:   "waits done", want: succeeded(attemptFailed), calls: "retrieve confirm retrieve confirm",
			check: func(f *fixture) {
				f.expectKeys("confirm", 3, 4)
				f.expectRecorded(4, domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500, RequestID: "req_provider"})
			},
		},
		"an error of a look records no attempt": {
			begin: isStarted, script: script{"retrieve": {breaks()}}, ends: "waits", want: open(toStarted, "pending"), calls: "retrieve",
		},
	}
	for ends, answers := range retried() {
		for name, answer := range answers {
			scenarios[name+" records nothing, keeps the key, and the intent is asked first"] = scenario{
				begin:  isStarted,
				script: script{"retrieve": {shows("requires_confirmation"), shows("requires_confirmation")}, "confirm": {answer[0], shows("succeeded")}},
				ends:   ends, want: succeeded(toStarted), calls: "retrieve confirm retrieve confirm",
				check: func(f *fixture) { f.expectKeys("confirm", 3, 3) },
			}
		}
	}
	runAll(t, scenarios)
}

func TestAttempt_retry_after_is_honoured(t *testing.T) {
	t.Parallel()
	tooMany := says(http.StatusTooManyRequests, `{"error":{"type":"invalid_request_error","code":"rate_limit"}}`, "Retry-After", "500")
	var mu sync.Mutex
	asked := map[time.Duration]bool{}
	for op, begin := range map[string]func(*fixture){
		"create":   isAccepted,
		"retrieve": isStarted,
		"confirm":  func(f *fixture) { f.start(); f.provider.on("retrieve", shows("requires_confirmation")) },
		"cancel":   func(f *fixture) { f.start(); f.provider.on("retrieve", shows("requires_action")) },
		"refund":   isRefunding,
		"refunds":  func(f *fixture) { f.request(f.capture(order()), "re_1", 600) },
	} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			begin(f)
			f.provider.on(op, tooMany)
			var waiting *inbox.WaitError
			err := f.deliver()
			if !errors.As(err, &waiting) || waiting.AtLeast < 500*time.Second || waiting.AtLeast > 625*time.Second {
				t.Fatalf("the handler returned %v, want it to wait 500 seconds and at most a quarter more", err)
			}
			f.expectText("true", `select (due_at > clock_timestamp() + interval '490 seconds')::text from inbox`)
			mu.Lock()
			defer mu.Unlock()
			if asked[waiting.AtLeast] {
				t.Errorf("another charge is retried after exactly %s too", waiting.AtLeast)
			}
			asked[waiting.AtLeast] = true
		})
	}
}

// TestResume begins where a worker died: the payment has started, and the provider knows
// the state of the intent.
func TestResume(t *testing.T) {
	t.Parallel()
	scenarios := map[string]scenario{
		"waiting for the provider counts no attempt": {
			begin:  isStarted,
			script: script{"retrieve": {shows("processing"), shows("processing"), shows("processing"), shows("succeeded")}},
			ends:   "waits waits waits done", want: succeeded(toStarted), calls: "retrieve retrieve retrieve retrieve",
			check: func(f *fixture) {
				f.expectText("1 3", `select format('%s %s', attempts, waits) from inbox where receiver = 'fulfillment'`)
			},
		},
		"a message that says nothing but the charge is a wake-up too": {
			begin:  func(f *fixture) { f.start(); f.exec(`update inbox set payload = '{}'`) },
			script: script{"retrieve": {shows("succeeded")}},
			want:   succeeded(toStarted), calls: "retrieve",
		},
		"a message about a charge that is not there waits": {
			begin: func(f *fixture) {
				f.start()
				f.exec(`update inbox set payload = convert_to(replace(convert_from(payload, 'UTF8'), 'ch_1', 'ch_2'), 'UTF8')`)
			},
			ends: "waits", want: open(toStarted, "pending"),
		},
		"a second message of a finished charge calls no provider": {
			begin: func(f *fixture) {
				f.request(f.capture(order()), "re_1", 600)
				f.append(f.load("ch_1"), domain.RefundSucceeded{RefundID: "re_1", Provider: domain.Provider, ProviderRefund: "rp_1", Amount: 600})
			},
			want: back(refunded, "", "done"),
		},
	}
	dead := open(toStarted, "dead")
	for name, s := range map[string]struct {
		status string
		pairs  []any
		then   script
		calls  string
		end    string
		want   snapshot
	}{
		"an intent that was not confirmed is confirmed": {
			"requires_confirmation", nil, script{"confirm": {shows("succeeded")}}, " confirm", "done", succeeded(toStarted),
		},
		"an intent without a payment method that was never attempted is confirmed": {
			"requires_payment_method", nil, script{"confirm": {shows("succeeded")}}, " confirm", "done", succeeded(toStarted),
		},
		"a declined intent is canceled and the charge fails": {
			"requires_payment_method", attempted("card_declined", "insufficient_funds"),
			script{"cancel": {shows("canceled")}},
			" cancel", "done",
			failed(toStarted+declined, domain.CardDeclined),
		},
		"an intent declined for authentication is canceled and the charge fails": {
			"requires_payment_method", attempted("authentication_required", "authentication_required"),
			script{"cancel": {shows("canceled")}},
			" cancel", "done",
			failed(toStarted+declined, domain.AuthenticationRequired),
		},
		"an attempted intent that forgot its decline is canceled and the charge fails": {
			"requires_payment_method",
			[]any{"latest_charge", "py_1"},
			script{"cancel": {shows("canceled")}},
			" cancel", "done",
			failed(toStarted+declined, domain.ProviderRefused),
		},
		"an intent that wants the customer is canceled and the charge fails": {
			"requires_action", nil, script{"cancel": {shows("canceled")}}, " cancel", "done", failed(toStarted+declined, domain.AuthenticationRequired),
		},
		"a live card that a test key declined waits for an operator": {
			"requires_payment_method", attempted("card_declined", "test_mode_live_card"), nil, "", "blocked", open(toStarted, "pending"),
		},
		"an intent that is processing is read later":             {"processing", nil, nil, "", "waits", open(toStarted, "pending")},
		"an intent that succeeded is recorded and not confirmed": {"succeeded", nil, nil, "", "done", succeeded(toStarted)},
		"a canceled intent fails the charge":                     {"canceled", nil, nil, "", "done", failed(toStarted+declined, domain.ProviderRefused)},
		"a canceled intent that remembers its decline fails the charge with it": {
			"canceled", attempted("card_declined", "lost_card"), nil, "", "done", failed(toStarted+declined, domain.CardDeclined),
		},
		"an intent of another amount makes a dead letter":              {"succeeded", []any{"amount", 2000, "amount_received", 2000}, nil, "", "dead", dead},
		"an intent of another currency makes a dead letter":            {"succeeded", []any{"currency", "usd"}, nil, "", "dead", dead},
		"an intent of another charge makes a dead letter":              {"succeeded", []any{"metadata", map[string]any{"charge_reference": "ref_ch_2"}}, nil, "", "dead", dead},
		"an intent that took less than its amount makes a dead letter": {"succeeded", []any{"amount_received", 1998}, nil, "", "dead", dead},
		"an intent that waits to be captured makes a dead letter":      {"requires_capture", nil, nil, "", "dead", dead},
	} {
		scenarios[name] = scenario{
			begin:  func(f *fixture) { f.start(); f.provider.on("retrieve", shows(s.status, s.pairs...)) },
			script: s.then, ends: s.end, want: s.want, calls: "retrieve" + s.calls,
		}
	}
	runAll(t, scenarios)
}

func TestDecline(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	isDeclined := func(f *fixture) {
		f.start()
		f.provider.on("retrieve", shows("requires_confirmation"))
		f.provider.on("confirm", declines())
	}
	cardDeclined := failed(toStarted+declined, domain.CardDeclined)
	runAll(t, map[string]scenario{
		"the intent is canceled before the charge fails": {
			begin:  func(f *fixture) { f.accept("ch_1", order()); f.cancelsFirst() },
			script: script{"create": {shows("requires_confirmation")}, "confirm": {declines()}},
			want:   cardDeclined, calls: "create confirm cancel",
			check: func(f *fixture) {
				f.expectFailure(domain.Failure{Code: domain.CardDeclined, Message: "for people", DeclineCode: "insufficient_funds"})
			},
		},
		"a confirmation that wants the customer is canceled": {
			begin:  isStarted,
			script: script{"retrieve": {shows("requires_confirmation")}, "confirm": {shows("requires_action")}, "cancel": {shows("canceled")}},
			want:   failed(toStarted+declined, domain.AuthenticationRequired), calls: "retrieve confirm cancel",
		},
		"if the money was taken after all the charge succeeds": {
			begin: isDeclined, script: script{"cancel": {unexpected("succeeded")}},
			want: succeeded(toStarted), calls: "retrieve confirm cancel",
		},
		"if the money is on its way the charge waits": {
			begin: isDeclined, script: script{"cancel": {unexpected("processing")}, "retrieve": {shows("succeeded")}},
			ends: "waits done", want: succeeded(toStarted), calls: "retrieve confirm cancel retrieve",
		},
		"a cancel that has no answer does not fail the charge": {
			begin: isDeclined,
			script: script{
				"cancel":   {cut, shows("canceled")},
				"retrieve": {shows("requires_payment_method", attempted("card_declined", "insufficient_funds")...)},
			},
			ends: "waits done", want: cardDeclined, calls: "retrieve confirm cancel retrieve cancel",
		},
		"a refused confirmation of an intent that stays open is canceled": {
			begin: isStarted,
			script: script{
				"retrieve": {shows("requires_confirmation"), shows("requires_confirmation")},
				"confirm":  {refuses(http.StatusBadRequest, "invalid_request_error", "amount_too_small")}, "cancel": {shows("canceled")},
			},
			want: failed(toStarted+declined, domain.ProviderRefused), calls: "retrieve confirm retrieve cancel",
		},
		"a confirmation refused because another one succeeded is a capture": {
			begin:  isStarted,
			script: script{"retrieve": {shows("requires_confirmation"), shows("succeeded")}, "confirm": {unexpected("succeeded")}},
			want:   succeeded(toStarted), calls: "retrieve confirm retrieve",
		},
	})
}
