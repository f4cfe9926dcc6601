package httpapi_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
)

// TestAuthentication_floodsDelayNoOtherCaller: whose requests are refused costs no look-up, and keeps nobody from
// his. The lock shows it: behind it stands every look-up.
func TestAuthentication_floodsDelayNoOtherCaller(t *testing.T) {
	t.Parallel()
	const looked, line = 2, 8
	const ours, theirs = apiKey, strangerKey
	for _, test := range []struct {
		name      string
		perSecond int
		known     []string // keys that opened before
		flood     func(i int) call
		stuck     int    // how many of the flood wait for a look-up
		refused   string // and what the others are told
		other     string // who comes then
		lookups   int    // that stand before the lock then
		together  bool   // of the flood it may be fewer, since they share one
	}{
		{
			"of a key beyond its rate", 1,
			[]string{ours},
			func(int) call { return get("/v1/balances") },
			0, "/problems/rate-limited",
			theirs, 1, false,
		},
		{
			"of a key without a rate", 0,
			[]string{ours, theirs},
			func(int) call { return get("/v1/balances") },
			line / 2, "/problems/unavailable",
			theirs, looked, true,
		},
		{
			"of keys of nobody", 0,
			[]string{ours},
			func(i int) call { return get("/v1/balances").as("sk_test_of_nobody_" + strconv.Itoa(i)) },
			line, "/problems/unavailable",
			ours, looked + 1, false,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db := openWith(t, postgres.Options{MaxConns: 6, LockTimeout: patience})
			c := &clock{}
			w := serveOn(t, db, func(api *httpapi.Config) {
				api.Limits = httpapi.Limits{PerSecond: test.perSecond, InFlight: line, PerMerchant: line / 2, Authenticating: looked}
				api.Now = c.now
			})
			for _, key := range test.known {
				if a := w.send(t, get("/v1/balances").as(key)); a.status != http.StatusOK {
					t.Fatalf("status %d: %s", a.status, a.body)
				}
			}
			held := begin(t, db)
			exec(t, held, `lock table api_keys in access exclusive mode`)

			const many = 2 * line
			flood := &crowd{answers: make(chan answer, many)}
			for i := range many {
				flood.send(t, w, test.flood(i))
			}
			for range many - test.stuck {
				wantProblem(t, <-flood.answers, test.refused)
			}
			most := min(looked, test.stuck)
			least := most
			if test.together {
				least = 1
			}
			waitingBetween(t, db, least, most)

			other := &crowd{answers: make(chan answer, 1)}
			other.send(t, w, get("/v1/balances").as(test.other))
			waiting(t, db, test.lookups)
			if err := held.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if a := <-other.answers; a.status != http.StatusOK {
				t.Errorf("the other one: status %d: %s", a.status, a.body)
			}
			other.all.Wait()
			flood.all.Wait()
		})
	}
}

// TestAuthentication_readsEachKeyAgain: that a key has opened helps it to nothing.
func TestAuthentication_readsEachKeyAgain(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{
		"once it is revoked":   `update api_keys set revoked_at = clock_timestamp() where merchant_id = 'acme'`,
		"once it has expired":  `update api_keys set created_at = created_at - interval '2 hours', expires_at = created_at - interval '1 hour' where merchant_id = 'acme'`,
		"once it is not there": `delete from api_keys where merchant_id = 'acme'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := rated(t, 2)
			if a := w.send(t, get("/v1/balances")); a.status != http.StatusOK {
				t.Fatalf("status %d: %s", a.status, a.body)
			}
			exec(t, w.db, end)
			for range 5 { // and it uses no rate of its merchant's up
				wantProblem(t, w.send(t, get("/v1/balances")), "/problems/unauthorized")
			}
		})
	}
	t.Run("whoever has it now", func(t *testing.T) {
		t.Parallel()
		w := serve(t)
		w.accept(t, "key-1", body())
		exec(t, w.db, `update api_keys set merchant_id = 'globex' where merchant_id = 'acme'`)
		if a := w.accept(t, "key-1", body()); a.header.Get("Idempotent-Replayed") != "" {
			t.Error("it is a replay of the other merchant's")
		}
	})
}
