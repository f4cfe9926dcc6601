package httpapi_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// TestPreferWait_onACharge waits over a pool of one connection, which every other request needs too.
func TestPreferWait_onACharge(t *testing.T) {
	t.Parallel()
	w := serveOn(t, openWith(t, postgres.Options{MaxConns: 1}), func(api *httpapi.Config) { api.Limits.InFlight = 4 })
	ended, pending := w.captured(t, "ended"), w.accept(t, "pending", body("return_url", `"https://shop.example"`)).header.Get("Location")
	patient := func(path string) call { return get(path).with("Prefer", "wait=10") }
	is := func(a answer, status string) {
		t.Helper()
		if got := members(t, a.body)["status"]; a.status != http.StatusOK || got != status {
			t.Errorf("%d %v, want %s", a.status, got, status)
		}
	}
	is(w.send(t, patient(ended)), "succeeded")
	is(w.send(t, get(pending).with("Prefer", "wait=soon")), "pending")
	began := time.Now()
	is(w.send(t, get(pending).with("Prefer", "wait=1")), "pending")
	if waited := time.Since(began); waited < time.Second {
		t.Errorf("it waited %s", waited)
	}

	first := w.sendAll(t, patient(pending), patient(pending))
	is(<-first, "pending") // one more than may wait
	intent := "pi_" + idOf(pending)
	w.happen(t, pending, happens(domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: intent}))
	w.happen(t, pending, happens(domain.PaymentActionRequired{URL: "https://bank.example", ExpiresAt: time.Now().Add(time.Hour)}))
	is(<-first, "requires_action")
	second := w.sendAll(t, patient(pending))
	w.happen(t, pending, func(c domain.Charge) []domain.Event { return c.Capture(intent, c.Money) })
	is(<-second, "succeeded")
}

// TestPreferWait_onAChargeEndsWithTheServer: a wait does not hold up a shutdown.
func TestPreferWait_onAChargeEndsWithTheServer(t *testing.T) {
	t.Parallel()
	w := serve(t)
	pending := w.accept(t, "pending", body()).header.Get("Location")
	began := time.Now()
	answers := w.sendAll(t, get(pending).with("Prefer", "wait=10"))
	testdb.Must(t, w.server.Shutdown(t.Context()))
	if a := <-answers; a.status != http.StatusOK || time.Since(began) > 9*time.Second {
		t.Errorf("status %d after %s", a.status, time.Since(began))
	}
}
