package httpapi_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
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

func TestKeys_areAcceptedFromTheirAddresses(t *testing.T) {
	t.Parallel()
	w := serve(t, behindProxy)
	key, b := merchants.NewKey(), &pgx.Batch{}
	merchants.IssueKey(b, key, merchants.Grant{
		Merchant: "acme", Scopes: merchants.Scopes(),
		Addresses: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8::/32")},
	})
	testdb.Must(t, w.db.Commit(t.Context(), b))
	for range 2 { // unknown, and then known
		for address, status := range map[string]int{
			"203.0.113.9": 200, "2001:db8::9": 200, "::ffff:203.0.113.9": 200, "203.0.114.9": 401, "2001:db9::9": 401, "": 401,
		} {
			a := w.send(t, get("/v1/balances").as(key).from(address))
			if a.status != status {
				t.Errorf("from %q it is answered %d, want %d", address, a.status, status)
			}
			if status == http.StatusUnauthorized && strings.Contains(a.body, "address") {
				t.Errorf("the answer says why: %s", a.body)
			}
		}
	}
}

// TestRecordUses_onceInAnHour: nothing is written by the request itself.
func TestRecordUses_onceInAnHour(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	register(t, db)
	config := newAPI(t, testdb.As(t, db, postgres.RoleAPI), &await.Log{})
	c := &clock{}
	config.Now = c.now
	api := httpapi.New(*config)
	used := func() []string {
		return testdb.All[string](t, db, `select coalesce(last_used_at::text, 'never') from api_keys where prefix = $1`, merchants.Prefix(apiKey))
	}
	use := func() (recorded []string) {
		for range 2 {
			if a := direct(t, api.Handler(), get("/v1/balances")); a.status != http.StatusOK {
				t.Fatalf("status %d", a.status)
			}
		}
		before := used()
		if _, err := api.RecordUses(t.Context()); err != nil {
			t.Error(err)
		}
		return append(before, used()...)
	}
	first := use()
	if first[0] != "never" || first[1] == "never" {
		t.Errorf("before and after the first uses: %v", first)
	}
	if second := use(); second[0] != first[1] || second[1] != first[1] {
		t.Errorf("a use within the hour is recorded: %v", second)
	}
	exec(t, db, `update api_keys set last_used_at = last_used_at - interval '61 minutes'`)
	c.pass(61 * time.Minute)
	if later := use(); later[0] == later[1] {
		t.Errorf("a use after an hour is not recorded: %v", later)
	}
	exec(t, db, `revoke execute on function api_keys_used from payonce_api`)
	c.pass(61 * time.Minute)
	direct(t, api.Handler(), get("/v1/balances"))
	if _, err := api.RecordUses(t.Context()); err == nil {
		t.Error("a use that cannot be recorded is no error")
	}
}

// TestRecordUses_cutInItsCommit: a use is recorded or not, and the next process records its own.
func TestRecordUses_cutInItsCommit(t *testing.T) {
	t.Parallel()
	for side, recorded := range map[failpoint.Side]bool{failpoint.Before: false, failpoint.After: true} {
		t.Run(string(side), func(t *testing.T) {
			t.Parallel()
			address := testdb.URL(t)
			db, proxy := testdb.OpenAt(t, address, postgres.Options{}), failpoint.StartCutter(t, address)
			register(t, db)
			use := func(db *postgres.DB, cut func()) error {
				api := httpapi.New(*newAPI(t, db, &await.Log{}))
				if a := direct(t, api.Handler(), get("/v1/balances")); a.status != http.StatusOK {
					t.Fatalf("status %d", a.status)
				}
				cut()
				_, err := api.RecordUses(t.Context())
				return err
			}
			used := func() bool {
				return testdb.All[bool](t, db, `select last_used_at is not null from api_keys where prefix = $1`, merchants.Prefix(apiKey))[0]
			}
			err := use(testdb.OpenAt(t, proxy.URL(), postgres.Options{MaxConns: 1}), func() { proxy.ArmLast(side, 1) })
			if err == nil || proxy.Cuts() != 1 || used() != recorded {
				t.Errorf("after %d cuts (%v) the use is recorded: %t", proxy.Cuts(), err, used())
			}
			if err := use(db, func() {}); err != nil || !used() {
				t.Errorf("the use by another process is recorded: %t (%v)", used(), err)
			}
		})
	}
}
