package httpapi_test

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	w := serveWith(t, func(api *httpapi.Config) {
		api.Limits = httpapi.Limits{PerSecond: perSecond}
		api.Now = c.now
	})
	return w, c
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	const limited = "/problems/rate-limited"

	t.Run("so many in a second, and then none until there is time for one", func(t *testing.T) {
		t.Parallel()
		w, c := rated(t, 4)
		before := rows(t, w.db)
		for i := range 4 {
			w.accept(t, "key-"+strconv.Itoa(i), body())
		}
		for range 3 {
			wantProblem(t, w.send(t, post("key-4", body())), limited)
		}
		c.pass(249 * time.Millisecond)
		wantProblem(t, w.send(t, post("key-4", body())), limited)
		added := ofOneCharge()
		for table := range added {
			added[table] = 4
		}
		wantRows(t, w.db, before, added)

		c.pass(time.Millisecond)
		if a := w.accept(t, "key-4", body()); a.header.Get("Idempotent-Replayed") != "" {
			t.Error("the key that was refused has an answer")
		}
		wantProblem(t, w.send(t, post("key-5", body())), limited)
	})

	t.Run("what is saved up is a second's", func(t *testing.T) {
		t.Parallel()
		w, c := rated(t, 2)
		c.pass(time.Hour)
		for range 2 {
			w.send(t, get("/v1/balances"))
		}
		wantProblem(t, w.send(t, get("/v1/balances")), limited)
	})

	t.Run("who waits for Retry-After is let in", func(t *testing.T) {
		t.Parallel()
		w, c := rated(t, 1)
		w.accept(t, "key-1", body())
		a := w.send(t, post("key-2", body()))
		wantProblem(t, a, limited)
		seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
		if err != nil {
			t.Fatal(err)
		}
		c.pass(time.Duration(seconds) * time.Second)
		w.accept(t, "key-2", body())
	})

	t.Run("replays, reads and refusals count", func(t *testing.T) {
		t.Parallel()
		w, _ := rated(t, 4)
		w.accept(t, "key-1", body())
		w.accept(t, "key-1", body())
		wantProblem(t, w.send(t, post("key-2", "{")), "/problems/malformed")
		wantProblem(t, w.send(t, get("/v1/nothing")), "/problems/not-found")
		wantProblem(t, w.send(t, post("key-1", body())), limited)
	})

	t.Run("each merchant has a rate of its own", func(t *testing.T) {
		t.Parallel()
		w, _ := rated(t, 1)
		w.accept(t, "key-1", body())
		wantProblem(t, w.send(t, post("key-2", body())), limited)
		if a := w.send(t, post("key-1", body()).as(strangerKey)); a.status != http.StatusAccepted {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	})

	t.Run("health, strangers and the provider's events do not count", func(t *testing.T) {
		t.Parallel()
		w, _ := rated(t, 1)
		for range 5 {
			if a := w.send(t, get("/healthz")); a.status != http.StatusOK {
				t.Errorf("/healthz: status %d: %s", a.status, a.body)
			}
			w.becomesReady(t)
			wantProblem(t, w.send(t, get("/v1/balances").as("nobody")), "/problems/unauthorized")
			wantProblem(t, w.send(t, to("/v1/webhooks/stripe", "", "{}")), "/problems/webhook-signature")
		}
		w.accept(t, "key-1", body())
	})

	t.Run("none unless set", func(t *testing.T) {
		t.Parallel()
		w := serve(t)
		for range 50 {
			w.accept(t, "key-1", body())
		}
	})
}

// Size and the API key come before it, everything else after.
func TestRateLimitInTheOrderOfLayers(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	w, _ := rated(t, 1)
	w.accept(t, "used", body())
	before := rows(t, w.db)
	for _, r := range []route{
		{name: "a charge", operation: "POST /v1/charges", path: "/v1/charges", body: body()},
		{name: "a refund", operation: "POST /v1/charges/:id/refunds", path: "/v1/charges/ch_1/refunds", body: "{}"},
		{name: "a cancellation", operation: "POST /v1/charges/:id/cancel", path: "/v1/charges/ch_1/cancel", body: "{}"},
	} {
		for _, test := range append(r.faults(), faulty{"a used key", r.under("used"), ""}) {
			kind := "/problems/rate-limited"
			if test.kind == "/problems/too-large" || test.kind == "/problems/unauthorized" {
				kind = test.kind
			}
			t.Run(r.name+" with "+test.name, func(t *testing.T) {
				a := w.send(t, test.call)
				wantProblem(t, a, kind)
				if a.header.Get("Idempotency-Key") != "" || a.header.Get("Idempotency-Expires") != "" {
					t.Errorf("it speaks of the key: %v", a.header)
				}
				wantRows(t, w.db, before, nil)
			})
		}
	}
}

// crowd sends requests at once, which do not end before release.
type crowd struct {
	answers chan answer
	all     sync.WaitGroup
}

func (c *crowd) send(t *testing.T, w *world, calls ...call) {
	t.Helper()
	for _, request := range calls {
		c.all.Go(func() {
			a, err := w.try(t, request)
			if err != nil {
				t.Error(err)
			}
			c.answers <- a
		})
	}
}

// TestInFlight: two merchants, all of whose requests stand before a lock.
func TestInFlight(t *testing.T) {
	t.Parallel()
	db := openWith(t, postgres.Options{MaxConns: 12, LockTimeout: patience})
	w := serveOn(t, db, func(api *httpapi.Config) {
		api.Limits = httpapi.Limits{InFlight: 6, PerMerchant: 4, Authenticating: 2}
	})
	before := rows(t, db)
	held := begin(t, db)
	exec(t, held, `lock table ledger_events in access exclusive mode`)
	stuck := &crowd{answers: make(chan answer, 6)}

	for i := range 4 {
		stuck.send(t, w, post("ours-"+strconv.Itoa(i), body()))
	}
	waiting(t, db, 4)

	// A merchant has its share and no more.
	a := w.send(t, post("ours-4", body())) // is answered while the lock is held
	p := wantProblem(t, a, "/problems/unavailable")
	if !strings.Contains(p.Detail, "in flight") {
		t.Errorf("the detail does not name the reason: %s", a.body)
	}
	if a.header.Get("Idempotency-Key") != "" {
		t.Error("it speaks of the key")
	}

	// Another one gets in, until all places are taken.
	for i := range 2 {
		stuck.send(t, w, post("theirs-"+strconv.Itoa(i), body()).as(strangerKey))
	}
	waiting(t, db, 6)
	wantProblem(t, w.send(t, post("theirs-2", body()).as(strangerKey)), "/problems/unavailable")
	wantProblem(t, w.send(t, to("/v1/webhooks/stripe", "", "{}")), "/problems/unavailable")

	// What takes no place is served.
	wantProblem(t, w.send(t, post("ours-4", body()).as("nobody")), "/problems/unauthorized")
	if a := w.send(t, get("/healthz")); a.status != http.StatusOK {
		t.Errorf("/healthz: status %d: %s", a.status, a.body)
	}
	w.becomesReady(t)

	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	stuck.all.Wait()
	for range 6 {
		if a := <-stuck.answers; a.status != http.StatusAccepted {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}

	// Of those who were refused nothing is stored, and their keys work.
	added := ofOneCharge()
	for table := range added {
		added[table] = 6
	}
	wantRows(t, db, before, added)
	for _, c := range []call{post("ours-4", body()), post("theirs-2", body()).as(strangerKey)} {
		if a := w.accepted(t, c); a.header.Get("Idempotent-Replayed") != "" {
			t.Error("it is a replay")
		}
	}
	if !strings.Contains(w.log.String(), `"error":"too many requests are in flight"`) {
		t.Error("the log does not say why")
	}
}

// TestAuditsInFlight: an audit holds a connection for as long as it reads. Whoever
// asks for many has one, and leaves the others their connections.
func TestAuditsInFlight(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db := openWith(t, postgres.Options{MaxConns: 6, LockTimeout: patience})
	w := serveOn(t, db, func(api *httpapi.Config) { api.Limits = httpapi.Limits{InFlight: 12, PerMerchant: 8, Auditing: 2} })
	held := begin(t, db)
	exec(t, held, `lock table ledger_events in access exclusive mode`)
	stuck := &crowd{answers: make(chan answer, 2)}
	stuck.send(t, w, get("/v1/audit"))
	waiting(t, db, 1)
	for range 3 {
		p := wantProblem(t, w.send(t, get("/v1/audit")), "/problems/unavailable")
		if !strings.Contains(p.Detail, "in flight") {
			t.Errorf("the second audit of a merchant: %s", p.Detail)
		}
	}
	stuck.send(t, w, get("/v1/audit").as(strangerKey))
	waiting(t, db, 2)
	for _, key := range []string{apiKey, strangerKey} {
		wantProblem(t, w.send(t, get("/v1/idempotency-keys/none").as(key)), "/problems/not-found")
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	stuck.all.Wait()
	for range 2 {
		if a := <-stuck.answers; a.status != http.StatusOK {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
	if a := w.send(t, get("/v1/audit")); a.status != http.StatusOK {
		t.Errorf("the next one: status %d: %s", a.status, a.body)
	}
}

// TestSlowBodiesTakeNobodysPlace: a request counts as in flight when all of it
// is here.
func TestSlowBodiesTakeNobodysPlace(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	const sockets = 50
	w := serveBare(t, func(api *httpapi.Config) {
		api.Limits = httpapi.Limits{InFlight: 2, PerMerchant: 2, Authenticating: 2}
	}, func(*http.Server) {})
	before := rows(t, w.db)
	head := "POST /v1/charges HTTP/1.1\r\nHost: payonce\r\nContent-Type: application/json\r\n" +
		"Authorization: Bearer " + apiKey + "\r\nIdempotency-Key: half\r\nContent-Length: 1000\r\n\r\n"
	event := "POST /v1/webhooks/stripe HTTP/1.1\r\nHost: payonce\r\nContent-Length: 1000\r\n\r\n{"
	for i := range sockets {
		w.dial(t, []string{head, head + body(), event}[i%3])
	}
	const good = 20
	for i := range good {
		a := w.send(t, post("good-"+strconv.Itoa(i), body()))
		for tries := 0; a.status == http.StatusServiceUnavailable && tries < 1000; tries++ { // while the sockets are authenticated
			a = w.send(t, post("good-"+strconv.Itoa(i), body()))
		}
		if a.status != http.StatusAccepted {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
	}
	added := ofOneCharge()
	for table := range added {
		added[table] = good
	}
	wantRows(t, w.db, before, added)
}
