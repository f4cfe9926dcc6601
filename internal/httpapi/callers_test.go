package httpapi_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/testrun"
)

// behindProxy makes the addresses of X-Forwarded-For count, since the client of a test is the
// proxy.
func behindProxy(c *httpapi.Config) {
	c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("10.0.0.0/8")}
}

// from is the call of a client behind a proxy.
func (c call) from(address string) call { return c.with("X-Forwarded-For", address) }

// TestAccessLog_saysWhoAndFromWhere: a client behind a trusted proxy has the last address that
// is not a proxy's; no other caller chooses an address.
func TestAccessLog_saysWhoAndFromWhere(t *testing.T) {
	t.Parallel()
	const forged = "198.51.100.66"
	for name, test := range map[string]struct {
		proxies   bool
		forwarded []string
		client    string
	}{
		"no proxy":                       {false, nil, "127.0.0.1"},
		"a header without a proxy":       {false, []string{forged}, "127.0.0.1"},
		"a proxy":                        {true, []string{"203.0.113.9"}, "203.0.113.9"},
		"two proxies":                    {true, []string{"203.0.113.9, 10.1.2.3"}, "203.0.113.9"},
		"an address before the client's": {true, []string{forged + ", 203.0.113.9"}, "203.0.113.9"},
		"a header before the proxy's":    {true, []string{forged, "203.0.113.9"}, "203.0.113.9"},
		"IPv6":                           {true, []string{"2001:db8::7"}, "2001:db8::7"},
		"a hop with a port":              {true, []string{"203.0.113.9:54321"}, "203.0.113.9"},
		"a proxy with a port":            {true, []string{"203.0.113.9, 10.1.2.3:80"}, "203.0.113.9"},
		"IPv6 with a port":               {true, []string{"[2001:db8::7]:443"}, "2001:db8::7"},
		"IPv6 in brackets":               {true, []string{"[2001:db8::7]"}, "2001:db8::7"},
		"a port that is none":            {true, []string{"203.0.113.9:99999"}, "127.0.0.1"},
		"no address":                     {true, []string{"4242424242424242"}, "127.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var changes []func(*httpapi.Config)
			if test.proxies {
				changes = append(changes, behindProxy)
			}
			w := serve(t, changes...)
			a := w.send(t, get("/v1/balances").with("X-Forwarded-For", test.forwarded...))
			w.send(t, get("/v1/balances").with("Authorization", "Bearer "+merchants.NewKey()))
			all := lines(t, w)
			line := all[len(all)-2]
			for field, want := range map[string]any{
				"merchant": "acme", "key_id": merchants.Prefix(apiKey), "client": test.client,
				"bytes": float64(len(a.body)), "route": "/v1/balances", "status": float64(http.StatusOK),
			} {
				if line[field] != want {
					t.Errorf("%s is %v, want %v", field, line[field], want)
				}
			}
			if last := all[len(all)-1]; last["merchant"] != nil || last["key_id"] != nil {
				t.Errorf("an unknown key is logged: %v", last)
			}
		})
	}
}

func TestEvents_nameTheKeyAndTheClient(t *testing.T) {
	t.Parallel()
	w := serve(t, behindProxy)
	w.accepted(t, post("key-1", body()).from("203.0.113.9").with("X-Request-Id", "req-1"))
	await.Row(t, w.db, `
select metadata - 'causation_id' = jsonb_build_object('correlation_id', 'req-1', 'actor', 'api', 'api_key', $1::text, 'client', '203.0.113.9')
  from ledger_events`, merchants.Prefix(apiKey))
}

// TestGuesses_areBackedOff: an address that has sent too many wrong keys gets 429, and no
// unknown key of it is read. Known keys, other addresses and other paths are served.
func TestGuesses_areBackedOff(t *testing.T) {
	t.Parallel()
	const burst = 3
	c := &clock{}
	w := serve(t, behindProxy, func(config *httpapi.Config) {
		config.Limits.Guesses = burst
		config.Now = c.now
	})
	const guesser, other = "203.0.113.9", "203.0.113.10"
	known, fresh := w.keyFor(t, merchants.ChargesRead), w.keyFor(t, merchants.ChargesRead)
	status := func(key, address string) int {
		t.Helper()
		a := w.send(t, get("/v1/balances").as(key).from(address))
		if a.status == http.StatusTooManyRequests {
			if p := readProblem(t, a); p.Type != "/problems/rate-limited" || !strings.Contains(p.Detail, "this address") || a.header.Get("Retry-After") != "6" {
				t.Errorf("%q, to be repeated after %s", p.Detail, a.header.Get("Retry-After"))
			}
		}
		return a.status
	}
	var got []int
	got = append(got, status(known, guesser))
	for range burst + 2 {
		got = append(got, status(merchants.NewKey(), guesser))
	}
	got = append(got, status(fresh, guesser), status(known, guesser), status(fresh, other), status(merchants.NewKey(), other))
	got = append(got, w.send(t, get("/v1/balances").with("Authorization").from(guesser)).status, w.send(t, get("/healthz").from(guesser)).status)
	c.pass(6 * time.Second)
	got = append(got, status(merchants.NewKey(), guesser), status(merchants.NewKey(), guesser))
	want := []int{
		200, 401, 401, 401, 429, 429,
		429, 200, 200, 401, // of the two valid keys, this api has seen one from that address
		401, 200,
		401, 429,
	}
	testrun.Same(t, "statuses", want, got)
}
