package fulfillment_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/testdb"
)

func TestDecline(t *testing.T) {
	testdb.Long(t, "it makes a database for each of many cases")
	t.Parallel()

	t.Run("the intent is canceled before the charge fails", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.accept("ch_1", order())
		w.provider.on("create", shows("requires_confirmation"))
		w.provider.on("confirm", declines())
		during := make(chan sight, 1)
		w.provider.on("cancel", meanwhile(func() { during <- w.see() }, shows("canceled")))
		w.expectKind(w.deliver(), "done")
		if diff := cmp.Diff(open(toStarted, "running"), <-during); diff != "" {
			t.Errorf("while the intent was being canceled (-want +got):\n%s", diff)
		}
		w.expect(failed(toStarted, domain.CardDeclined), "create confirm cancel")
		want := &domain.Failure{Code: domain.CardDeclined, Message: "for people", DeclineCode: "insufficient_funds"}
		if diff := cmp.Diff(want, w.load().Charge.Failure); diff != "" {
			t.Errorf("the failure (-want +got):\n%s", diff)
		}
	})

	t.Run("a confirmation that wants the customer is canceled", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.accept("ch_1", order())
		w.provider.on("create", shows("requires_confirmation"))
		w.provider.on("confirm", shows("requires_action"))
		w.provider.on("cancel", shows("canceled"))
		w.expectKind(w.deliver(), "done")
		w.expect(failed(toStarted, domain.AuthenticationRequired), "create confirm cancel")
	})

	t.Run("if the money was taken after all the charge succeeds", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.provider.on("retrieve", shows("requires_confirmation"))
		w.provider.on("confirm", declines())
		w.provider.on("cancel", unexpected("succeeded"))
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted), "retrieve confirm cancel")
	})

	t.Run("if the money is on its way the charge waits", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.provider.on("retrieve", shows("requires_confirmation"), shows("succeeded"))
		w.provider.on("confirm", declines())
		w.provider.on("cancel", unexpected("processing"))
		w.expectKind(w.deliver(), "waits")
		w.expect(open(toStarted, "pending"), "retrieve confirm cancel")
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted), "retrieve")
	})

	t.Run("a cancel that leaves the intent open does not fail the charge", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.provider.on("retrieve", shows("requires_action"))
		w.provider.on("cancel", shows("requires_action"))
		w.expectKind(w.deliver(), "waits")
		w.expect(open(toStarted, "pending"), "retrieve cancel")
	})

	for name, answer := range map[string]http.HandlerFunc{
		"a cut":                    cut,
		"a 503":                    refuses(http.StatusServiceUnavailable, "api_error", ""),
		"a 500":                    breaks(),
		"a lock held by another":   refuses(http.StatusTooManyRequests, "invalid_request_error", "lock_timeout"),
		"an answer of another one": shows("canceled", "id", "pi_2"),
	} {
		t.Run("a cancel that ends in "+name+" does not fail the charge", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start()
			w.provider.on("retrieve", shows("requires_confirmation"),
				shows("requires_payment_method", attempted("card_declined", "insufficient_funds")...))
			w.provider.on("confirm", declines())
			w.provider.on("cancel", answer, shows("canceled"))
			w.expectKind(w.deliver(), "waits")
			w.expect(open(toStarted, "pending"), "retrieve confirm cancel")
			w.expectKind(w.deliver(), "done")
			w.expect(failed(toStarted, domain.CardDeclined), "retrieve cancel")
		})
	}

	t.Run("a refused confirmation of an intent that stays open is canceled", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.provider.on("retrieve", shows("requires_confirmation"), shows("requires_confirmation"))
		w.provider.on("confirm", refuses(http.StatusBadRequest, "invalid_request_error", "amount_too_small"))
		w.provider.on("cancel", shows("canceled"))
		w.expectKind(w.deliver(), "done")
		w.expect(failed(toStarted, domain.ProviderRefused), "retrieve confirm retrieve cancel")
	})

	t.Run("a confirmation refused because another one succeeded is a capture", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start()
		w.provider.on("retrieve", shows("requires_confirmation"), shows("succeeded"))
		w.provider.on("confirm", unexpected("succeeded"))
		w.expectKind(w.deliver(), "done")
		w.expect(succeeded(toStarted), "retrieve confirm retrieve")
	})
}
