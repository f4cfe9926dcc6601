package httpapi_test

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// clock stands still until it is moved.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time           { return time.Unix(1_800_000_000, c.at.Load()) }
func (c *clock) pass(after time.Duration) { c.at.Add(int64(after)) }

// rated serves with a limit of rates, by a clock of its own.
func rated(t *testing.T, perSecond int) (*world, *clock) {
	t.Helper()
	c := &clock{}
	return serve(t, func(api *httpapi.Config) {
		api.Limits = httpapi.Limits{PerSecond: perSecond}
		api.Now = c.now
	}), c
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	const limited = "/problems/rate-limited"

	t.Run("so many in a second, and then none until there is time for one", func(t *testing.T) {
		t.Parallel()
		w, c := rated(t, 4)
		w.read(t, get("/v1/balances"))
		c.pass(time.Hour) // a second's are saved up, and no more
		before := rows(t, w.db)
		left := func(a answer, want string) {
			t.Helper()
			if got := a.header.Get("RateLimit-Policy") + " " + a.header.Get("RateLimit"); got != `"merchant";q=4;w=1 "merchant";r=`+want+";t=1" {
				t.Errorf("with %s left the answer says %s", want, got)
			}
		}
		for i := range 4 {
			left(w.accept(t, "key-"+strconv.Itoa(i), body()), strconv.Itoa(3-i))
		}
		a := w.send(t, post("key-4", body()))
		wantProblem(t, a, limited)
		left(a, "0")
		c.pass(249 * time.Millisecond)
		wantProblem(t, w.send(t, post("key-4", body())), limited)
		wantRows(t, w.db, before, ofCharges(4))

		c.pass(time.Millisecond)
		w.first(t, post("key-4", body()))
		a = w.send(t, post("key-5", body()))
		wantProblem(t, a, limited)
		seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
		testdb.Must(t, err)
		c.pass(time.Duration(seconds) * time.Second)
		w.accept(t, "key-5", body())
	})

	t.Run("replays, reads and refusals count, for their merchant alone", func(t *testing.T) {
		t.Parallel()
		w, _ := rated(t, 4)
		w.accept(t, "key-1", body())
		w.accept(t, "key-1", body())
		wantProblem(t, w.send(t, post("key-2", "{")), "/problems/malformed")
		wantProblem(t, w.send(t, get("/v1/nothing")), "/problems/not-found")
		wantProblem(t, w.send(t, post("key-1", body())), limited)
		w.accepted(t, post("key-1", body()).as(strangerKey))
	})

	t.Run("health, unknown API keys and the provider's events do not count", func(t *testing.T) {
		t.Parallel()
		w, _ := rated(t, 1)
		for range 5 {
			w.read(t, get("/healthz"))
			w.insist(t, get("/readyz"))
			wantProblem(t, w.send(t, get("/v1/balances").as("nobody")), "/problems/unauthorized")
			wantProblem(t, w.send(t, to("/v1/webhooks/stripe", "", "{}")), "/problems/webhook-signature")
		}
		w.accept(t, "key-1", body())
	})
}

// Size and the API key come before it, everything else after.
func TestRateLimit_followsSizeAndAPIKey(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	w, _ := rated(t, 1)
	w.accept(t, "used", body())
	for _, r := range []route{
		{name: "a charge", operation: "POST /v1/charges", path: "/v1/charges", body: body()},
		{name: "a refund", operation: "POST /v1/charges/:id/refunds", path: "/v1/charges/ch_1/refunds", body: "{}"},
		{name: "a cancellation", operation: "POST /v1/charges/:id/cancel", path: "/v1/charges/ch_1/cancel", body: "{}"},
	} {
		faults := append(r.faults(), faulty{"a used key", r.under("used"), ""})
		for i, test := range faults {
			if test.kind != "/problems/too-large" && test.kind != "/problems/unauthorized" {
				faults[i].kind = "/problems/rate-limited"
			}
		}
		t.Run(r.name, func(t *testing.T) { w.refuses(t, faults) })
	}
}

// wantBusy checks the refusal of a request while too many others are in flight.
func wantBusy(t *testing.T, a answer) {
	t.Helper()
	if p := wantProblem(t, a, "/problems/unavailable"); !strings.Contains(p.Detail, "in flight") || a.header.Get("Idempotency-Key") != "" {
		t.Errorf("the reason is not named, or the key is: %v %s", a.header, a.body)
	}
}

// TestInFlight: two merchants, all of whose requests wait for a lock.
func TestInFlight(t *testing.T) {
	t.Parallel()
	db := openWith(t, postgres.Options{MaxConns: 12, LockTimeout: patience})
	w := serveOn(t, db, func(api *httpapi.Config) {
		api.Limits = httpapi.Limits{InFlight: 8, PerMerchant: 5, Authenticating: 2} // 6 and 4 of them for writes
	})
	before := rows(t, db)
	held := testdb.Begin(t, db.Pool(), `lock table ledger_events in access exclusive mode`)
	charge := func(key string) call { return post(key, body()) }

	ours := w.sendAll(t, charge("1"), charge("2"), charge("3"), charge("4"))
	await.Blocked(t, db, 4)
	wantBusy(t, w.send(t, charge("5"))) // a merchant has its share and no more
	wantProblem(t, w.send(t, get("/v1/idempotency-keys/5")), "/problems/not-found")

	theirs := w.sendAll(t, charge("1").as(strangerKey), charge("2").as(strangerKey))
	await.Blocked(t, db, 6)
	wantBusy(t, w.send(t, charge("3").as(strangerKey)))
	wantBusy(t, w.send(t, to("/v1/webhooks/stripe", "", "{}")))

	// What takes no request slot is served.
	wantProblem(t, w.send(t, charge("5").as("nobody")), "/problems/unauthorized")
	w.read(t, get("/healthz"))
	await.Progress(t, "/readyz is answered", func() (seen string, done bool) {
		a := w.send(t, get("/readyz"))
		return a.body, a.status == http.StatusOK || strings.Contains(a.body, "confirms no commit") // which commits do here
	})

	testdb.Must(t, held.Rollback(t.Context()))
	for _, answers := range []<-chan answer{ours, theirs} {
		for range cap(answers) {
			wantStatus(t, <-answers, http.StatusAccepted)
		}
	}

	// Nothing of the refused requests is stored, and their keys work.
	wantRows(t, db, before, ofCharges(6))
	for _, c := range []call{charge("5"), charge("3").as(strangerKey)} {
		w.first(t, c)
	}
	if !strings.Contains(w.log.String(), `"error":"too many requests are in flight`) {
		t.Error("the log does not say why")
	}
}

// TestSlowBody_usesNoSlot: a request counts as in flight when all of it is here.
func TestSlowBody_usesNoSlot(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	const sockets, good = 50, 20
	w := serveBare(t, func(*http.Server) {}, func(api *httpapi.Config) {
		api.Limits = httpapi.Limits{InFlight: 2, PerMerchant: 2, Authenticating: 2}
	})
	before := rows(t, w.db)
	head := "POST /v1/charges HTTP/1.1\r\n" + mine + isJSON + "\r\nIdempotency-Key: half\r\nContent-Length: 1000\r\n\r\n"
	event := "POST /v1/webhooks/stripe HTTP/1.1\r\nHost: payonce\r\nContent-Length: 1000\r\n\r\n{"
	for i := range sockets {
		w.dial(t, []string{head, head + body(), event}[i%3])
	}
	for i := range good {
		var a answer
		await.True(t, "it is answered, once the sockets are authenticated", func() bool {
			a = w.send(t, post("good-"+strconv.Itoa(i), body()))
			return a.status != http.StatusServiceUnavailable
		})
		wantStatus(t, a, http.StatusAccepted)
	}
	wantRows(t, w.db, before, ofCharges(good))
}

// TestAuthentication_floodsDelayNoOtherCaller: requests that are refused cost no read, and
// the reads of one flood delay no other caller's. A lock on the API keys shows which reads
// are in flight.
func TestAuthentication_floodsDelayNoOtherCaller(t *testing.T) {
	t.Parallel()
	const reading, queue, many = 2, 8, 16
	for _, test := range []struct {
		name      string
		perSecond int
		known     []string // API keys that were valid before
		flood     func(i int) call
		queued    int    // requests of the flood that wait for their read
		least     int    // reads of the flood in flight, as batches share them
		refused   string // the problem of the others
		other     string // the API key of another caller
		reads     int    // in flight with the other caller's, at most
	}{
		{
			"of a key beyond its rate", 1,
			[]string{apiKey},
			func(int) call { return get("/v1/balances") },
			0, 0, "/problems/rate-limited", strangerKey, 1,
		},
		{
			"of a key without a rate", 0,
			[]string{apiKey, strangerKey},
			func(int) call { return get("/v1/balances") },
			queue / 2, 1, "/problems/unavailable", strangerKey, reading,
		},
		{
			"of unknown keys", 0,
			[]string{apiKey},
			func(i int) call { return get("/v1/balances").as("sk_test_of_nobody_" + strconv.Itoa(i)) },
			queue, 1, "/problems/unavailable", apiKey, reading + 1,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			db := openWith(t, postgres.Options{MaxConns: 6, LockTimeout: patience})
			w := serveOn(t, db, func(api *httpapi.Config) {
				api.Limits = httpapi.Limits{PerSecond: test.perSecond, InFlight: queue, PerMerchant: queue / 2, Authenticating: reading}
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
			waitingBetween(t, db, test.least, min(reading, test.queued))
			other := w.sendAll(t, get("/v1/balances").as(test.other))
			waitingBetween(t, db, test.least+1, test.reads)
			testdb.Must(t, held.Rollback(t.Context()))
			wantStatus(t, <-other, http.StatusOK)
			for range test.queued {
				<-flood
			}
		})
	}
}
