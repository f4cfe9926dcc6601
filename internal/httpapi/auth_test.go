package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/labstack/echo/v4"

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
// of them were valid once. A revoked key is refused from the next request on, and has no replays.
func TestUnauthorized_isTheSameForEveryReason(t *testing.T) {
	t.Parallel()
	w := serve(t)
	expired, revoked := w.keyFor(t, merchants.Scopes()...), w.keyFor(t, merchants.Scopes()...)
	for _, key := range []string{expired, revoked} { // from now on they were valid lately
		w.accepted(t, post("used", body()).as(key))
	}
	testdb.Exec(t, w.db.Pool(), `update api_keys set revoked_at = clock_timestamp() where prefix = $1`, merchants.Prefix(revoked))
	testdb.Exec(t, w.db.Pool(), `
update api_keys
   set created_at = created_at - interval '25 hours',
       expires_at = expires_at - interval '25 hours'
 where prefix = $1`, merchants.Prefix(expired))
	reasons := map[string][]string{
		"a scheme alone":                 {"Bearer"},
		"Basic with the API key":         {"Basic " + apiKey},
		"the key without a scheme":       {apiKey},
		"an unknown key":                 {"Bearer " + merchants.NewKey()},
		"the prefix and another secret":  {"Bearer " + revoked[:20] + "0123456789012345678901234567890123456789"},
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
		w.read(t, get("/v1/balances").with("Authorization", value))
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
		"two proxies":                    {proxied, "203.0.113.9, 10.1.2.3", "203.0.113.9"},
		"an address before the client's": {proxied, forged + ", 203.0.113.9", "203.0.113.9"},
		"a header before the proxy's":    {proxied, forged + "\n203.0.113.9", "203.0.113.9"},
		"IPv6":                           {proxied, "2001:db8::7", "2001:db8::7"},
		"a hop with a port":              {proxied, "203.0.113.9:54321", "203.0.113.9"},
		"a proxy with a port":            {proxied, "203.0.113.9, 10.1.2.3:80", "203.0.113.9"},
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
				w.read(t, get("/v1/balances").as(key))
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
