package httpapi_test

import (
	"context"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// TestAccessLog_holdsHashesOfKeys, and nothing of a request that its sender has written. Config.Observe learns what each key
// and each event led to, and the message of a request has the trace that Config.Carry finds.
func TestAccessLog_holdsHashesOfKeys(t *testing.T) {
	t.Parallel()
	const secret, parent = "secret-5e1a", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	const key, planted = secret + "-key", `alter table idempotency_keys add constraint planted check (key = '') not valid`
	var seen httpapi.Answer
	observe := func(api *httpapi.Config) {
		api.Observe = func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				r := c.Request()
				trace := strings.Join(r.Header.Values("Traceparent"), "+") + "/ours"
				c.SetRequest(r.WithContext(context.WithValue(r.Context(), traceKey{}, trace)))
				err := next(c)
				seen = httpapi.AnswerOf(c)
				return err
			}
		}
		api.Carry = func(ctx context.Context) map[string]string {
			trace, _ := ctx.Value(traceKey{}).(string)
			return map[string]string{"traceparent": trace}
		}
	}
	db := openWith(t, postgres.Options{LockTimeout: 20 * time.Millisecond})
	w := serveOn(t, db, takesEvents, behindProxy, observe)
	r := w.routes(t)[2]
	ours, other := path.Base(path.Dir(r.path)), strings.Replace(r.path, "ch_", "ch_x", 1)
	w.accept(t, secret+"-old", body())
	testdb.Exec(t, db.Pool(), `update idempotency_keys set expires_at = clock_timestamp() - interval '1 second'`)
	held := holdAt(t, db, "POST /v1/charges", secret+"-held")
	pending := serveOn(t, db, observe, func(api *httpapi.Config) { api.InFlight = http.StatusAccepted })
	order := body("order_id", `"`+secret+`"`, "description", `"`+secret+`"`, "payment_method", `"`+secret+`"`, "customer", `"`+secret+`"`,
		"metadata", `{"`+secret+`":"`+secret+`"}`, "items", `[{"sku":"`+secret+`","quantity":1}]`)
	late := unsigned("{}").with("Stripe-Signature", "t="+unix(301)+",v1="+mac(stripeSecret, unix(301), "{}"))
	const charges, refunds, ofKey, events = "/v1/charges", "/v1/charges/:id/refunds", "/v1/idempotency-keys/:key", "/v1/webhooks/stripe"
	known := func(c call) call { return c.from("203.0.113.9").with("X-Request-Id", "req-1") }
	unread, first, replayed := httpapi.Result(""), httpapi.KeyFirst, httpapi.KeyReplayed
	testdb.Exec(t, db.Pool(), `delete from outbox`)
	for _, test := range []struct {
		w      *world
		call   call
		status int
		route  string
		result httpapi.Result
	}{
		{w, known(r.under(key)).with("Traceparent", parent), 202, refunds, first},
		{w, known(r.under(`"` + key + `"`)), 202, refunds, replayed},
		{w, r.under(key).with("Prefer", secret+", wait="+secret), 202, refunds, replayed},
		{w, to(other, key, r.body), 422, refunds, httpapi.KeyReused},
		{w, to(other, key+"-2", r.body), 404, refunds, first},
		{w, to(other, key+"-2", r.body), 404, refunds, replayed},
		{w, r.under(key + " " + key), 400, refunds, unread},
		{w, r.under(key).as(secret).with("X-Request-Id", "req-1"), 401, refunds, httpapi.DeniedInvalid},
		{w, to(r.path, key, `{"`+secret+`":1}`), 400, refunds, unread},
		{w, to(r.path, key+"-reason", `{"amount":1,"reason":"`+secret+`"}`), 202, refunds, first},
		{w, post(secret+"-order", order), 202, charges, first},
		{w, post(secret+"-past", body("expires_at", `"2026-01-01T00:00:00Z"`)), 422, charges, first},
		{w, post(secret+"-old", body()), 410, charges, httpapi.KeyExpired},
		{w, post(secret+"-held", body()), 409, charges, httpapi.KeyInUse},
		{pending, post(secret+"-held", body()), 202, charges, httpapi.KeyInUse},
		{w, get("/v1/charges/" + secret), 404, "/v1/charges/:id", unread},
		{w, get("/v1/charges").like("BREW"), 405, charges, unread},
		{w, get("/" + secret + "?q=" + secret), 404, "", unread},
		{w, get("/v1/idempotency-keys/" + key + "?q=" + secret), 200, ofKey, unread},
		{w, get("/v1/idempotency-keys/" + secret), 404, ofKey, unread},
		{w, late, 400, events, httpapi.EventClock},
		{w, signed(event("evt_2", "payment_intent.succeeded", intentOf("ch_of_nobody"))), 200, events, httpapi.EventIgnored},
		{w, signed(event("evt_1", "payment_intent.succeeded", intentOf(ours))).with("Traceparent", parent), 200, events, httpapi.EventSent},
		{w, post(key+"-new", body()), 503, charges, httpapi.KeyUnavailable},
		{w, post(key, body()), 503, charges, unread},
	} {
		if test.result == httpapi.KeyUnavailable {
			testdb.Must(t, held.Rollback(t.Context()))
			testdb.Exec(t, db.Pool(), planted)
		}
		if test.result == unread && test.status == http.StatusServiceUnavailable {
			w.api.Close()
		}
		a := test.w.send(t, test.call)
		want := httpapi.Answer{Method: test.call.method, Route: test.route, Status: test.status, Result: test.result}
		if want.Method == "BREW" {
			want.Method = "other"
		}
		testrun.Same(t, test.call.path+", answered "+a.body, want, seen)
	}
	var line map[string]any
	for text := range strings.Lines(w.log.String()) {
		if fields := members(t, text); fields["replayed"] == true {
			line = fields
			break
		}
	}
	for _, name := range []string{"time", "level", "milliseconds", "bytes"} {
		delete(line, name)
	}
	testrun.Same(t, "the line of a replay", map[string]any{
		"msg": "request", "method": "POST", "route": refunds, "status": 202.0, "request_id": "req-1", "client": "203.0.113.9",
		"merchant": "acme", "key_id": merchants.Prefix(apiKey), "key_hash": idempotency.Hash(key), "replayed": true,
	}, line)
	testrun.Row(t, db, `
select metadata - 'causation_id' = jsonb_build_object('correlation_id', 'req-1', 'actor', 'api', 'api_key', $1::text, 'client', '203.0.113.9')
  from ledger_events
 where type = 'refund.requested.v1'
 order by position
 limit 1`, merchants.Prefix(apiKey))
	wantNoneOf(t, w, secret, apiKey)
	wantNoneOf(t, pending, secret, apiKey)
	testrun.Same(t, "traces", []string{parent + "/ours", "/ours", "/ours", parent + "/ours"}, // replays and refusals leave no message
		testdb.All[string](t, db, `select metadata ->> 'traceparent' from outbox order by id`))
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

type traceKey struct{}

// TestRequestID_isInAnswerAndLog: the caller's own id, or else one of ours, is in every answer. TestAccessLog_holdsHashesOfKeys
// has that it is in the line that is logged for it.
func TestRequestID_isInAnswerAndLog(t *testing.T) {
	t.Parallel()
	w := serve(t)
	for id, kept := range map[string]bool{
		"req-1_A.b": true, "4242-4242-4242-4242": true, strings.Repeat("r", 128): true,
		"": false, "req-1/A": false, "req-1,req-2": false, strings.Repeat("r", 129): false, "req 1": false, "réq": false, "req\xff": false,
	} {
		got := w.send(t, get("/v1/balances").with("X-Request-Id", id)).header.Get("X-Request-Id")
		if kept != (got == id) || !kept && (uuid.Validate(got) != nil || id != "" && strings.Contains(w.log.String(), id)) {
			t.Errorf("X-Request-Id is %q, sent was %q:\n%s", got, id, w.log)
		}
	}
	if got := w.send(t, get("/healthz").with("X-Request-Id", "req-1", "req-2")).header.Values("X-Request-Id"); len(got) != 1 || uuid.Validate(got[0]) != nil {
		t.Errorf("of two X-Request-Id the answer has %q", got)
	}
}
