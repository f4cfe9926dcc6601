package fulfillment_test

import (
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
)

// interruptions are answers after which the provider may still be at work on
// the same key.
func interruptions() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"a cut":                 cut,
		"a key in flight":       refuses(http.StatusConflict, "idempotency_error", "idempotency_key_in_use"),
		"too many requests":     refuses(http.StatusTooManyRequests, "invalid_request_error", "rate_limit"),
		"a gateway's 502":       says(http.StatusBadGateway, "<html>"),
		"a 503":                 refuses(http.StatusServiceUnavailable, "api_error", ""),
		"a refused secret key":  refuses(http.StatusUnauthorized, "invalid_request_error", ""),
		"a key of other values": refuses(http.StatusBadRequest, "idempotency_error", ""),
	}
}

func TestAttempt_create(t *testing.T) {
	t.Parallel()

	t.Run("an error of the provider is recorded and opens a new key", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.accept("ch_1", order())
		w.provider.on("create", breaks(), breaks(), shows("requires_confirmation"))
		w.provider.on("confirm", shows("succeeded"))
		for range 2 {
			w.expectKind(w.deliver(), "waits")
		}
		w.expect(open(toReserved+" payment.attempt_failed payment.attempt_failed", "pending"), "create create")
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toReserved+" payment.attempt_failed payment.attempt_failed payment.started"), "create confirm")
		s := w.load()
		want := []string{s.At(2).ID.String(), s.At(3).ID.String(), s.At(4).ID.String()}
		if diff := cmp.Diff(want, w.provider.keys("create")); diff != "" {
			t.Errorf("the keys are not the ids of the events that opened the attempts (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{s.At(5).ID.String()}, w.provider.keys("confirm")); diff != "" {
			t.Errorf("the key of the confirmation (-want +got):\n%s", diff)
		}
		failure := domain.PaymentAttemptFailed{Stage: domain.StageCreate, StatusCode: 500, RequestID: "req_provider"}
		if diff := cmp.Diff(failure, s.At(3).Event); diff != "" {
			t.Errorf("recorded (-want +got):\n%s", diff)
		}
	})

	t.Run("without items the key is the id of the first event", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		first := order()
		first.Items = nil
		s := w.accept("ch_1", first)
		w.provider.on("create", shows("requires_confirmation"))
		w.provider.on("confirm", shows("succeeded"))
		w.expectKind(w.deliver(), "done")
		want := sight{
			Events: "charge.requested payment.started" + captured, Stock: untouched, Outbox: "charge.succeeded", Message: "done",
		}
		w.expect(want, "create confirm")
		if diff := cmp.Diff([]string{s.Head().ID.String()}, w.provider.keys("create")); diff != "" {
			t.Errorf("the key (-want +got):\n%s", diff)
		}
	})

	for name, answer := range interruptions() {
		t.Run(name+" records nothing and keeps the key", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.accept("ch_1", order())
			w.provider.on("create", answer, shows("requires_confirmation"))
			w.provider.on("confirm", shows("succeeded"))
			w.expectKind(w.deliver(), "waits")
			w.expect(open(toReserved, "pending"), "create")
			w.expectKind(w.deliver(), "done")
			w.expect(succeeded(toStarted), "create confirm")
			if keys := w.provider.keys("create"); keys[0] != keys[1] || keys[0] == "" {
				t.Errorf("the keys are %q, want one", keys)
			}
		})
	}

	t.Run("a refused creation fails the charge, and there is nothing to cancel", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.accept("ch_1", order())
		w.provider.on("create", refuses(http.StatusBadRequest, "invalid_request_error", "resource_missing"))
		w.expectKind(w.deliver(), "done")
		w.expect(failed(toReserved, domain.ProviderRefused), "create")
		if failure := w.load().Charge.Failure; failure.Message != "for people" {
			t.Errorf("the failure is %+v, want the provider's message", failure)
		}
	})

	t.Run("a declined creation fails the charge, and there is nothing to cancel", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.accept("ch_1", order())
		w.provider.on("create", refuses(http.StatusPaymentRequired, "card_error", "card_declined", "decline_code", "lost_card"))
		w.expectKind(w.deliver(), "done")
		w.expect(failed(toReserved, domain.CardDeclined), "create")
		want := &domain.Failure{Code: domain.CardDeclined, Message: "for people", DeclineCode: "lost_card"}
		if diff := cmp.Diff(want, w.load().Charge.Failure); diff != "" {
			t.Errorf("the failure (-want +got):\n%s", diff)
		}
	})

	t.Run("an intent that a declined creation has left is recorded, and canceled before the charge fails", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.accept("ch_1", order())
		w.provider.on("create", declines())
		w.provider.on("cancel", shows("canceled"))
		w.expectKind(w.deliver(), "done")
		w.expect(failed(toStarted, domain.CardDeclined), "create cancel")
	})
}

func TestAttempt_confirm(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()

	t.Run("an error of the provider opens a new key, after a look at the intent", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.provider.on("retrieve", shows("requires_confirmation"), shows("requires_confirmation"))
		w.provider.on("confirm", breaks(), shows("succeeded"))
		w.expectKind(w.deliver(), "waits")
		w.expect(open(toStarted+" payment.attempt_failed", "pending"), "retrieve confirm")
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted+" payment.attempt_failed"), "retrieve confirm")
		s := w.load()
		want := []string{s.At(3).ID.String(), s.At(4).ID.String()}
		if diff := cmp.Diff(want, w.provider.keys("confirm")); diff != "" {
			t.Errorf("the keys (-want +got):\n%s", diff)
		}
		failure := domain.PaymentAttemptFailed{Stage: domain.StageConfirm, StatusCode: 500, RequestID: "req_provider"}
		if diff := cmp.Diff(failure, s.At(4).Event); diff != "" {
			t.Errorf("recorded (-want +got):\n%s", diff)
		}
	})

	t.Run("an error of the provider that took the money is not tried again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.provider.on("retrieve", shows("requires_confirmation"), shows("succeeded"))
		w.provider.on("confirm", breaks())
		w.expectKind(w.deliver(), "waits")
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted+" payment.attempt_failed"), "retrieve confirm retrieve")
	})

	for name, answer := range interruptions() {
		t.Run(name+" records nothing, keeps the key, and the intent is asked first", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start()
			w.provider.on("retrieve", shows("requires_confirmation"), shows("requires_confirmation"))
			w.provider.on("confirm", answer, shows("succeeded"))
			w.expectKind(w.deliver(), "waits")
			w.expect(open(toStarted, "pending"), "retrieve confirm")
			w.expectKind(w.deliver(), "done")
			w.expect(succeeded(toStarted), "retrieve confirm")
			if keys := w.provider.keys("confirm"); keys[0] != keys[1] || keys[0] == "" {
				t.Errorf("the keys are %q, want one", keys)
			}
		})
	}

	t.Run("an error of a look records no attempt", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.provider.on("retrieve", breaks())
		w.expectKind(w.deliver(), "waits")
		w.expect(open(toStarted, "pending"), "retrieve")
	})
}

func TestAttempt_retry_after_is_honoured(t *testing.T) {
	t.Parallel()
	tooMany := says(http.StatusTooManyRequests,
		`{"error":{"type":"invalid_request_error","code":"rate_limit"}}`, "Retry-After", "500")
	var mu sync.Mutex
	asked := map[time.Duration]bool{}
	for op, begin := range map[string]func(*world){
		"create":   func(w *world) { w.accept("ch_1", order()) },
		"retrieve": func(w *world) { w.start() },
		"confirm":  func(w *world) { w.start(); w.provider.on("retrieve", shows("requires_confirmation")) },
		"cancel":   func(w *world) { w.start(); w.provider.on("retrieve", shows("requires_action")) },
		"refund":   func(w *world) { w.refunding() },
		"refunds": func(w *world) {
			s := w.append(w.capture(), domain.RefundRequested{RefundID: "re_1", Amount: 600})
			w.put(fulfillment.ChargeReceiver, s, 1, "another")
		},
	} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			begin(w)
			w.provider.on(op, tooMany)
			var waiting *inbox.WaitError
			err := w.deliver()
			if !errors.As(err, &waiting) || waiting.AtLeast < 500*time.Second || waiting.AtLeast > 625*time.Second {
				t.Fatalf("the handler answered %v, want it to wait 500 seconds and at most a quarter more", err)
			}
			if got := w.text(`select (due_at > clock_timestamp() + interval '490 seconds')::text from inbox`); got != "true" {
				t.Error("the message is due before the time that the provider asked for")
			}
			mu.Lock()
			defer mu.Unlock()
			if asked[waiting.AtLeast] {
				t.Errorf("another charge comes back after exactly %s too", waiting.AtLeast)
			}
			asked[waiting.AtLeast] = true
		})
	}
}
