package httpapi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// keyFor makes a key of acme that lives for a day.
func (w *world) keyFor(t *testing.T, scopes ...merchants.Scope) string {
	t.Helper()
	key := merchants.NewKey()
	b := &pgx.Batch{}
	merchants.IssueKey(b, key, merchants.Grant{Merchant: "acme", Scopes: scopes, Life: new(24 * time.Hour)})
	testdb.Must(t, w.db.Commit(t.Context(), b))
	return key
}

// as is the call by another key.
func (c call) as(key string) call { return c.with("Authorization", "Bearer "+key) }

// TestUnauthorized_isTheSameForEveryReason: a caller that tries keys does not learn which
// of them were valid once. A key that was revoked or has expired is refused from the next request on, and has no replays.
func TestUnauthorized_isTheSameForEveryReason(t *testing.T) {
	t.Parallel()
	w := serve(t)
	expired, revoked := w.keyFor(t, merchants.Scopes()...), w.keyFor(t, merchants.Scopes()...)
	for _, key := range []string{expired, revoked} { // from now on they were valid lately
		wantStatus(t, w.send(t, post("used", body()).as(key)), http.StatusAccepted)
	}
	testdb.Exec(t, w.db.Pool(), `update api_keys set revoked_at = clock_timestamp() where prefix = $1`, merchants.Prefix(revoked))
	testdb.Exec(t, w.db.Pool(), `
update api_keys
   set created_at = created_at - interval '25 hours', expires_at = clock_timestamp()
 where prefix = $1`, merchants.Prefix(expired))
	reasons := map[string][]string{
		"a scheme alone":                 {"Bearer"},
		"Basic with the API key":         {"Basic " + apiKey},
		"the key without a scheme":       {apiKey},
		"an unknown key":                 {"Bearer " + merchants.NewKey()},
		"a wrong key before a right one": {"Bearer unknown", "Bearer " + apiKey},
		"an expired key":                 {"Bearer " + expired},
		"a revoked key":                  {"Bearer " + revoked},
	}
	before := rows(t, w.db)
	for _, c := range []call{post("key-1", body()), post("used", body()), post("", "{"), get("/v1/balances"), get("/v1/nothing")} {
		missing := w.send(t, c.with("Authorization"))
		wantProblem(t, missing, "/problems/unauthorized")
		for name, values := range reasons {
			a := w.send(t, c.with("Authorization", values...))
			wantSame(t, c.method+" "+c.path+" with "+name+", beside one without a key", missing, a, "X-Request-Id")
		}
	}
	wantRows(t, w.db, before, nil)
	for _, value := range []string{"bearer " + apiKey, "BEARER  " + apiKey + " "} {
		wantStatus(t, w.send(t, get("/v1/balances").with("Authorization", value)), http.StatusOK)
	}
}

// behindProxy makes the addresses of X-Forwarded-For count, since the client of a test is the
// proxy.
func behindProxy(c *httpapi.Config) {
	c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("10.0.0.0/8")}
}

// from is the call of a client behind a proxy.
func (c call) from(address string) call { return c.with("X-Forwarded-For", address) }

// TestClient_isNoProxy: a client behind a trusted proxy has the last address that is not a proxy's; no
// other caller chooses an address.
func TestClient_isNoProxy(t *testing.T) {
	t.Parallel()
	const forged = "198.51.100.66"
	var behind httpapi.Config
	behindProxy(&behind)
	direct, proxied := httpapi.ClientBehind(nil), httpapi.ClientBehind(behind.TrustedProxies)
	for name, test := range map[string]struct {
		find              echo.IPExtractor
		forwarded, client string
	}{
		"no proxy":                       {direct, "", "127.0.0.1"},
		"a header without a proxy":       {direct, forged, "127.0.0.1"},
		"a proxy":                        {proxied, "203.0.113.9", "203.0.113.9"},
		"an address before the client's": {proxied, forged + ", 203.0.113.9, 10.1.2.3", "203.0.113.9"},
		"a header before the proxy's":    {proxied, forged + "\n203.0.113.9", "203.0.113.9"},
		"IPv6":                           {proxied, "2001:db8::7", "2001:db8::7"},
		"hops with ports":                {proxied, "203.0.113.9:54321, 10.1.2.3:80", "203.0.113.9"},
		"IPv6 with a port":               {proxied, "[2001:db8::7]:443", "2001:db8::7"},
		"IPv6 in brackets":               {proxied, "[2001:db8::7]", "2001:db8::7"},
		"no address":                     {proxied, "4242424242424242", "127.0.0.1"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.RemoteAddr, r.Header["X-Forwarded-For"] = "127.0.0.1:80", strings.Split(test.forwarded, "\n")
		if got := test.find(r); got != test.client {
			t.Errorf("%s: the client is %s, want %s", name, got, test.client)
		}
	}
}

// TestGuesses_areBackedOff: an address that has sent too many wrong keys gets 429, and no
// unknown key of it is read. Known keys, other addresses and other paths are served.
func TestGuesses_areBackedOff(t *testing.T) {
	t.Parallel()
	const burst = 3
	c := &clock{}
	w := serve(t, behindProxy, func(config *httpapi.Config) { config.Limits.Guesses, config.Now = burst, c.now })
	const guesser, other = "203.0.113.9", "203.0.113.10"
	known, fresh := w.keyFor(t, merchants.ChargesRead), w.keyFor(t, merchants.ChargesRead)
	status := func(c call) int {
		t.Helper()
		a := w.send(t, c)
		if a.status == http.StatusTooManyRequests {
			if p := wantProblem(t, a, "/problems/rate-limited"); !strings.Contains(p.Detail, "this address") || a.header.Get("Retry-After") != "6" {
				t.Errorf("%q, to be repeated after %s", p.Detail, a.header.Get("Retry-After"))
			}
		}
		return a.status
	}
	by := func(key, address string) int { return status(get("/v1/balances").as(key).from(address)) }
	wrong := func() int { return by(merchants.NewKey(), guesser) }
	got := []int{
		by(known, guesser), wrong(), wrong(), wrong(), wrong(), wrong(),
		by(fresh, guesser), by(known, guesser), by(fresh, other), by(merchants.NewKey(), other),
		status(get("/v1/balances").with("Authorization").from(guesser)), status(get("/healthz").from(guesser)),
	}
	c.pass(6 * time.Second)
	want := []int{
		200, 401, 401, 401, 429, 429,
		429, 200, 200, 401, // of the two valid keys, this api has seen one from that address
		401, 200,
		401, 429,
	}
	testrun.Same(t, "statuses", want, append(got, wrong(), wrong()))
}

// TestAuthentication_floodsDelayNoOtherCaller: requests that are refused cost no read, and
// the reads of one flood delay no other caller's. A lock on the API keys shows which reads
// are in flight.
func TestAuthentication_floodsDelayNoOtherCaller(t *testing.T) {
	testrun.Long(t, "it sends many requests")
	t.Parallel()
	const reading, queue, many = 2, 8, 16
	balances := func(int) call { return get("/v1/balances") }
	nobodys := func(i int) call { return get("/v1/balances").as("sk_test_of_nobody_" + strconv.Itoa(i)) }
	for name, test := range map[string]struct {
		perSecond int
		known     []string // API keys that were valid before
		flood     func(i int) call
		queued    int    // requests of the flood that wait for their read
		refused   string // the problem of the others
		other     string // the API key of another caller
		reads     int    // in flight with the other caller's, at most
	}{
		"of a key beyond its rate":  {1, []string{apiKey}, balances, 0, "/problems/rate-limited", globexKey, 1},
		"of a key without a rate":   {0, []string{apiKey, globexKey}, balances, queue / 2, "/problems/unavailable", globexKey, reading},
		"of unknown keys, too many": {0, []string{apiKey}, nobodys, queue / 2, "/problems/unavailable", apiKey, reading + 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openWith(t, postgres.Options{MaxConns: 6, LockTimeout: patience, StatementTimeout: patience})
			w := serveOn(t, db, func(api *httpapi.Config) {
				api.Limits = httpapi.Limits{PerSecond: test.perSecond, InFlight: queue, Authenticating: reading}
				api.Now = new(clock).now
			})
			for _, key := range test.known {
				wantStatus(t, w.send(t, get("/v1/balances").as(key)), http.StatusOK)
			}
			held := testdb.Begin(t, db.Pool(), `lock table api_keys in access exclusive mode`)
			var calls []call
			for i := range many {
				calls = append(calls, test.flood(i))
			}
			flood := w.sendAll(t, calls...)
			for range many - test.queued {
				wantProblem(t, <-flood, test.refused)
			}
			least := min(1, test.queued) // as batches share them
			waitingBetween(t, db, least, min(reading, test.queued))
			other := w.sendAll(t, get("/v1/balances").as(test.other))
			waitingBetween(t, db, least+1, test.reads)
			testdb.Must(t, held.Rollback(t.Context()))
			wantStatus(t, <-other, http.StatusOK)
			for range test.queued {
				<-flood
			}
		})
	}
}

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
	wantStatus(t, pending.send(t, post(secret+"-held", body())), http.StatusAccepted)
	testrun.Same(t, "the result of 202 for a key in use", httpapi.KeyInUse, seen.Result)
	order := body("order_id", `"`+secret+`"`, "description", `"`+secret+`"`, "payment_method", `"`+secret+`"`, "customer", `"`+secret+`"`,
		"metadata", `{"`+secret+`":"`+secret+`"}`, "items", `[{"sku":"`+secret+`","quantity":1}]`)
	late := unsigned("{}").with("Stripe-Signature", "t="+unix(301)+",v1="+mac(stripeSecret, unix(301), "{}"))
	const charges, refunds, ofKey, events = "/v1/charges", "/v1/charges/:id/refunds", "/v1/idempotency-keys/:key", "/v1/webhooks/stripe"
	known := func(c call) call { return c.from("203.0.113.9").with("X-Request-Id", "req-1") }
	unread, first, replayed := httpapi.Result(""), httpapi.KeyFirst, httpapi.KeyReplayed
	testdb.Exec(t, db.Pool(), `delete from outbox`)
	for _, test := range []struct {
		call   call
		status int
		route  string
		result httpapi.Result
	}{
		{known(r.under(key)).with("Traceparent", parent), 202, refunds, first},
		{known(r.under(`"` + key + `"`)), 202, refunds, replayed},
		{r.under(key).with("Prefer", secret+", wait="+secret), 202, refunds, replayed},
		{to(other, key, r.body), 422, refunds, httpapi.KeyReused},
		{to(other, key+"-2", r.body), 404, refunds, first},
		{to(other, key+"-2", r.body), 404, refunds, replayed},
		{r.under(key + " " + key), 400, refunds, unread},
		{r.under(key).as(secret).with("X-Request-Id", "req-1"), 401, refunds, httpapi.DeniedInvalid},
		{to(r.path, key, `{"`+secret+`":1}`), 400, refunds, unread},
		{to(r.path, key+"-reason", `{"amount":1,"reason":"`+secret+`"}`), 202, refunds, first},
		{post(secret+"-order", order), 202, charges, first},
		{post(secret+"-past", body("expires_at", `"2026-01-01T00:00:00Z"`)), 422, charges, first},
		{post(secret+"-old", body()), 410, charges, httpapi.KeyExpired},
		{post(secret+"-held", body()), 409, charges, httpapi.KeyInUse},
		{get("/v1/charges/" + secret), 404, "/v1/charges/:id", unread},
		{get("/v1/charges").like("BREW"), 405, charges, unread},
		{get("/" + secret + "?q=" + secret), 404, "", unread},
		{get("/v1/idempotency-keys/" + key + "?q=" + secret), 200, ofKey, unread},
		{get("/v1/idempotency-keys/" + secret), 404, ofKey, unread},
		{late, 400, events, httpapi.EventClock},
		{signed(event("evt_2", "payment_intent.succeeded", intentOf("ch_of_nobody"))), 200, events, unread},
		{signed(event("evt_1", "payment_intent.succeeded", intentOf(ours))).with("Traceparent", parent), 200, events, httpapi.EventSent},
		{post(key+"-new", body()), 503, charges, httpapi.KeyUnavailable},
		{post(key, body()), 503, charges, unread},
	} {
		if test.result == httpapi.KeyUnavailable {
			testdb.Must(t, held.Rollback(t.Context()))
			testdb.Exec(t, db.Pool(), planted)
		}
		if test.result == unread && test.status == http.StatusServiceUnavailable {
			w.api.Close()
		}
		a := w.send(t, test.call)
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
