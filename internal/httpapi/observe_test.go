package httpapi_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// watched is what Config.Observe has seen.
type watched struct {
	mu      sync.Mutex
	answers []httpapi.Answer
}

type traceKey struct{}

// watch observes requests, and has their messages carry the traceparents that it sees.
func (o *watched) watch(api *httpapi.Config) {
	api.Observe = func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r := c.Request()
			trace := strings.Join(r.Header.Values("Traceparent"), "+") + "/ours"
			c.SetRequest(r.WithContext(context.WithValue(r.Context(), traceKey{}, trace)))
			err := next(c)
			o.mu.Lock()
			defer o.mu.Unlock()
			o.answers = append(o.answers, httpapi.AnswerOf(c))
			return err
		}
	}
	api.Carry = func(ctx context.Context) map[string]string {
		trace, _ := ctx.Value(traceKey{}).(string)
		return map[string]string{"traceparent": trace}
	}
}

func (o *watched) last() httpapi.Answer {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.answers[len(o.answers)-1]
}

func TestObserve_seesWhatAKeyLedTo(t *testing.T) {
	t.Parallel()
	seen := &watched{}
	db := openWith(t, postgres.Options{LockTimeout: 20 * time.Millisecond})
	w := serveOn(t, db, seen.watch)
	w.accept(t, "old", body())
	exec(t, w.db, `update idempotency_keys set expires_at = clock_timestamp() - interval '1 second'`)
	holdAt(t, w.db, "POST /v1/charges", "held")
	pending := serveOn(t, db, seen.watch, func(api *httpapi.Config) { api.InFlight = http.StatusAccepted })
	refund := to("/v1/charges/ch_1/refunds", "refund", "{}")
	const charges, refunds = "/v1/charges", "/v1/charges/:id/refunds"
	for _, test := range []struct {
		name string
		w    *world
		call call
		want httpapi.Answer
	}{
		{"a key's first request", w, post("key", body()), httpapi.Answer{Method: "POST", Route: charges, Status: 202, Key: httpapi.KeyFirst}},
		{"its replay", w, post("key", body()), httpapi.Answer{Method: "POST", Route: charges, Status: 202, Key: httpapi.KeyReplayed}},
		{"another request under it", w, post("key", body("amount", "1")), httpapi.Answer{Method: "POST", Route: charges, Status: 422, Key: httpapi.KeyReused}},
		{"an expired key", w, post("old", body()), httpapi.Answer{Method: "POST", Route: charges, Status: 410, Key: httpapi.KeyExpired}},
		{"a key in flight", w, post("held", body()), httpapi.Answer{Method: "POST", Route: charges, Status: 409, Key: httpapi.KeyInUse}},
		{"a key in flight, accepted", pending, post("held", body()), httpapi.Answer{Method: "POST", Route: charges, Status: 202, Key: httpapi.KeyInUse}},
		{"a refusal that is stored", w, refund, httpapi.Answer{Method: "POST", Route: refunds, Status: 404, Key: httpapi.KeyFirst}},
		{"and replayed", w, refund, httpapi.Answer{Method: "POST", Route: refunds, Status: 404, Key: httpapi.KeyReplayed}},
		{"a request without an answer of its own", w, post("key", "{"), httpapi.Answer{Method: "POST", Route: charges, Status: 400}},
		{"a read", w, get("/v1/charges/ch_1"), httpapi.Answer{Method: "GET", Route: "/v1/charges/:id", Status: 404}},
		{"no such path", w, get("/nowhere/" + strings.Repeat("x", 50)), httpapi.Answer{Method: "GET", Status: 404}},
		{"an odd method", w, get("/v1/charges").like("BREW"), httpapi.Answer{Method: "other", Route: charges, Status: 405}},
	} {
		a := test.w.send(t, test.call)
		testrun.Same(t, test.name+", answered "+a.body, test.want, seen.last())
	}
	w.api.Close()
	w.send(t, post("key", body()))
	if got := seen.last(); got.Status != http.StatusServiceUnavailable || got.Key != "" {
		t.Errorf("a store that is down is seen as %+v", got)
	}
}

// TestMessages_carryTheTraceOfTheirRequest: a replay and an event of no use leave no message,
// and a traceparent that holds a card number is dropped.
func TestMessages_carryTheTraceOfTheirRequest(t *testing.T) {
	t.Parallel()
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	seen := &watched{}
	w := serve(t, takesEvents, seen.watch)
	charge := idOf(w.accepted(t, post("key", body()).with("Traceparent", parent)).header.Get("Location"))
	w.accepted(t, post("key", body()).with("Traceparent", "another"))
	w.accepted(t, post("key-2", body()).with("Traceparent", "one", "two"))
	w.accepted(t, post("key-3", body()).with("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-4242424242424242-01"))
	w.happen(t, charge, happens(domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: "pi_" + charge}))
	for _, test := range []struct {
		event string
		sent  bool
	}{
		{event("evt_1", "payment_intent.succeeded", intentOf(charge)), true},
		{event("evt_1", "payment_intent.succeeded", intentOf(charge)), true},
		{event("evt_2", "payment_intent.succeeded", intentOf("ch_of_nobody")), false},
		{event("evt_3", "payout.paid", "{}"), false},
	} {
		wantReceived(t, w.send(t, signed(test.event).with("Traceparent", parent)))
		if a := seen.last(); a.Event != test.sent || a.Ignored == test.sent {
			t.Errorf("%s is seen as %+v", test.event, a)
		}
	}
	want := []string{parent + "/ours", "one+two/ours", "/ours", parent + "/ours", parent + "/ours"}
	testrun.Same(t, "traces", want, testdb.All[string](t, w.db, `select metadata ->> 'traceparent' from outbox order by id`))
}
