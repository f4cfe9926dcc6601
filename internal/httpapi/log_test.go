package httpapi_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestAccessLog_holdsHashesOfKeys, and nothing of a request that its sender has written.
func TestAccessLog_holdsHashesOfKeys(t *testing.T) {
	t.Parallel()
	w := serve(t)
	const secret = "secret-5e1a"
	const key = secret + "-key"
	r := w.routes(t)[2]
	type logged struct{ Route, Status, Hash, Replayed, Method, ID any }
	var want []logged
	// send expects the line of a request that a key was read of, if there is one.
	send := func(c call, status int, route, key string, replayed bool) {
		t.Helper()
		a := w.send(t, c)
		wantStatus(t, a, status)
		line := logged{Route: route, Status: float64(status), Method: c.method, ID: a.header.Get("X-Request-Id")}
		if key != "" {
			line.Hash, line.Replayed = idempotency.Hash(key), replayed
		}
		want = append(want, line)
	}
	before := len(lines(t, w))
	const charges, refunds, ofKey = "/v1/charges", "/v1/charges/:id/refunds", "/v1/idempotency-keys/:key"
	other := strings.Replace(r.path, "ch_", "ch_x", 1)
	send(r.under(key), http.StatusAccepted, refunds, key, false)
	send(r.under(`"`+key+`"`), http.StatusAccepted, refunds, key, true)
	send(to(other, key, r.body), http.StatusUnprocessableEntity, refunds, key, false)
	send(to(other, key+"-2", r.body), http.StatusNotFound, refunds, key+"-2", false)
	send(to(other, key+"-2", r.body), http.StatusNotFound, refunds, key+"-2", true)
	send(r.under(key+" "+key), http.StatusBadRequest, refunds, "", false)
	send(r.under(key).as(secret), http.StatusUnauthorized, refunds, "", false)
	send(to(r.path, key, `{"`+secret+`":1}`), http.StatusBadRequest, refunds, "", false)
	send(r.under(key).with("Prefer", secret+", wait="+secret), http.StatusAccepted, refunds, key, true)
	send(to(r.path, secret+"-reason", `{"amount":1,"reason":"`+secret+`"}`), http.StatusAccepted, refunds, secret+"-reason", false)
	order := body("order_id", `"`+secret+`"`, "description", `"`+secret+`"`, "payment_method", `"`+secret+`"`, "customer", `"`+secret+`"`,
		"metadata", `{"`+secret+`":"`+secret+`"}`, "items", `[{"sku":"`+secret+`","quantity":1}]`)
	send(post(secret+"-order", order), http.StatusAccepted, charges, secret+"-order", false)
	send(get("/v1/charges/"+secret), http.StatusNotFound, "/v1/charges/:id", "", false)
	send(get("/"+secret+"?q="+secret), http.StatusNotFound, "", "", false)
	send(get("/v1/idempotency-keys/"+key+"?q="+secret), http.StatusOK, ofKey, "", false)
	send(get("/v1/idempotency-keys/"+secret), http.StatusNotFound, ofKey, "", false)
	exec(t, w.db, `alter table idempotency_keys add constraint planted check (key = '') not valid`)
	send(post(key+"-new", body()), http.StatusServiceUnavailable, charges, key+"-new", false)
	w.api.Close()
	send(post(key, body()), http.StatusServiceUnavailable, charges, "", false)

	var got []logged
	for _, line := range lines(t, w)[before:] {
		if ms, ok := line["milliseconds"].(float64); !ok || ms < 0 {
			t.Errorf("milliseconds is %v", line["milliseconds"])
		}
		got = append(got, logged{line["route"], line["status"], line["key_hash"], line["replayed"], line["method"], line["request_id"]})
	}
	testrun.Same(t, "lines", want, got)
	wantNoneOf(t, w, secret, apiKey)
}

// wantNoneOf looks through all that was logged.
func wantNoneOf(t *testing.T, w *world, secrets ...string) {
	t.Helper()
	log := w.log.String()
	for _, secret := range secrets {
		if at := strings.Index(log, secret); at >= 0 {
			t.Errorf("the log holds %s: …%s", secret, log[max(at-300, 0):at+len(secret)])
		}
	}
}

// lines are the access log's. A line that is not JSON ends the test.
func lines(t *testing.T, w *world) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(w.log.String()) {
		if fields := members(t, line); fields["msg"] == "request" {
			all = append(all, fields)
		}
	}
	return all
}

// TestRequestID_isInAnswerAndLog: the caller's own id, or else one of ours, is in every answer and
// in the line that is logged for it.
func TestRequestID_isInAnswerAndLog(t *testing.T) {
	t.Parallel()
	w := serve(t)
	logged := func(c call, kept bool, status int) {
		t.Helper()
		a := w.send(t, c)
		got := a.header.Values("X-Request-Id")
		if wantStatus(t, a, status); len(got) != 1 || kept != (got[0] == c.header.Get("X-Request-Id")) || !kept && uuid.Validate(got[0]) != nil {
			t.Errorf("X-Request-Id is %q, sent was %q", got, c.header.Get("X-Request-Id"))
		}
		if !slices.ContainsFunc(lines(t, w), func(l map[string]any) bool { return l["request_id"] == got[0] && l["status"] == float64(status) }) {
			t.Errorf("no line has %q and %d:\n%s", got, status, w.log)
		}
	}
	logged(post("key-1", body()).with("X-Request-Id", "req-1"), true, http.StatusAccepted)
	logged(get("/healthz").with("X-Request-Id", "req-2"), true, http.StatusOK)
	logged(get("/nowhere"), false, http.StatusNotFound)
	logged(get("/v1/balances").with("Authorization").with("X-Request-Id", "req-3"), true, http.StatusUnauthorized)
	logged(post("key-2", padded(body(), maxBody+1)).with("X-Request-Id", "req-4"), true, http.StatusRequestEntityTooLarge)
	for id, kept := range map[string]bool{
		"req-1_A.b": true, "4242-4242-4242-4242": true, strings.Repeat("r", 128): true,
		"": false, "req-1/A": false, "req-1,req-2": false, strings.Repeat("r", 129): false, "req 1": false, "réq": false, "req\xff": false,
	} {
		logged(get("/v1/balances").with("X-Request-Id", id), kept, http.StatusOK)
		if !kept && id != "" && strings.Contains(w.log.String(), id) {
			t.Errorf("%q was refused, and is logged", id)
		}
	}
	logged(get("/v1/balances").with("X-Request-Id", "req-1", "req-2"), false, http.StatusOK)
}

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
	w := serveOn(t, db, takesEvents, seen.watch)
	w.accept(t, "old", body())
	ours := idOf(w.captured(t, "paid"))
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	exec(t, w.db, `update idempotency_keys set expires_at = clock_timestamp() - interval '1 second'`)
	held := holdAt(t, w.db, "POST /v1/charges", "held")
	pending := serveOn(t, db, seen.watch, func(api *httpapi.Config) { api.InFlight = http.StatusAccepted })
	refund := to("/v1/charges/ch_1/refunds", "refund", "{}")
	late := unsigned("{}").with("Stripe-Signature", "t="+unix(301)+",v1="+mac(stripeSecret, unix(301), "{}"))
	const charges, refunds, events = "/v1/charges", "/v1/charges/:id/refunds", "/v1/webhooks/stripe"
	for _, test := range []struct {
		w    *world
		call call
		want httpapi.Answer
	}{
		{w, post("key", body()).with("Traceparent", parent), httpapi.Answer{Route: charges, Status: 202, Result: httpapi.KeyFirst}},
		{w, post("key", body()), httpapi.Answer{Route: charges, Status: 202, Result: httpapi.KeyReplayed}},
		{w, post("key", body("amount", "1")), httpapi.Answer{Route: charges, Status: 422, Result: httpapi.KeyReused}},
		{w, post("old", body()), httpapi.Answer{Route: charges, Status: 410, Result: httpapi.KeyExpired}},
		{w, post("held", body()), httpapi.Answer{Route: charges, Status: 409, Result: httpapi.KeyInUse}},
		{pending, post("held", body()), httpapi.Answer{Route: charges, Status: 202, Result: httpapi.KeyInUse}},
		{w, refund, httpapi.Answer{Route: refunds, Status: 404, Result: httpapi.KeyFirst}},
		{w, refund, httpapi.Answer{Route: refunds, Status: 404, Result: httpapi.KeyReplayed}},
		{w, post("past", body("expires_at", `"2026-01-01T00:00:00Z"`)), httpapi.Answer{Route: charges, Status: 422, Result: httpapi.KeyFirst}},
		{w, post("key", "{"), httpapi.Answer{Route: charges, Status: 400}},
		{w, get("/v1/charges/ch_1"), httpapi.Answer{Method: "GET", Route: "/v1/charges/:id", Status: 404}},
		{w, get("/nowhere"), httpapi.Answer{Method: "GET", Status: 404}},
		{w, get("/v1/charges").like("BREW"), httpapi.Answer{Method: "other", Route: charges, Status: 405}},
		{w, post("key", body()).as("unknown"), httpapi.Answer{Route: charges, Status: 401, Result: httpapi.DeniedInvalid}},
		{w, late, httpapi.Answer{Route: events, Status: 400, Result: httpapi.EventClock}},
		{w, signed(event("evt_2", "payment_intent.succeeded", intentOf("ch_of_nobody"))), httpapi.Answer{Route: events, Status: 200, Result: httpapi.EventIgnored}},
		{
			w, signed(event("evt_1", "payment_intent.succeeded", intentOf(ours))).with("Traceparent", parent),
			httpapi.Answer{Route: events, Status: 200, Result: httpapi.EventSent},
		},
	} {
		a := test.w.send(t, test.call)
		if test.want.Method == "" {
			test.want.Method = "POST"
		}
		testrun.Same(t, test.call.path+", answered "+a.body, test.want, seen.last())
	}
	testdb.Must(t, held.Rollback(t.Context()))
	exec(t, w.db, `alter table idempotency_keys add constraint planted check (key = '') not valid`)
	w.send(t, post("new", body()))
	if got := seen.last(); got.Status != http.StatusServiceUnavailable || got.Result != httpapi.KeyUnavailable {
		t.Errorf("a store that refuses is seen as %+v", got)
	}
	testrun.Same(t, "traces", []string{"/ours", "/ours", parent + "/ours", parent + "/ours"}, // replays and refusals leave no message
		testdb.All[string](t, w.db, `select metadata ->> 'traceparent' from outbox order by id`))
}
