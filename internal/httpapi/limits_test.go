package httpapi_test

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// clock stands still until it is moved.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time           { return time.Unix(1_800_000_000, c.at.Load()) }
func (c *clock) pass(after time.Duration) { c.at.Add(int64(after)) }

// TestRateLimit: so many in a second, and then none until there is time for one, also after a pause.
// Replays, reads and refusals count, for their merchant alone; health, unknown API keys and the
// provider's events do not.
func TestRateLimit(t *testing.T) {
	t.Parallel()
	const limited = "/problems/rate-limited"
	c := &clock{}
	w := serve(t, func(api *httpapi.Config) { api.Limits.PerSecond, api.Now = 4, c.now })
	w.accept(t, "key-0", body())
	c.pass(time.Hour)
	before := rows(t, w.db)
	w.accept(t, "key-1", body())
	w.accept(t, "key-0", body())
	wantProblem(t, w.send(t, post("key-2", "{")), "/problems/malformed")
	wantProblem(t, w.send(t, get("/v1/nothing")), "/problems/not-found")
	wantProblem(t, w.send(t, post("key-2", body())), limited)
	for range 5 {
		w.read(t, get("/healthz"))
		wantProblem(t, w.send(t, get("/v1/balances").as("unknown")), "/problems/unauthorized")
		wantProblem(t, w.send(t, to("/v1/webhooks/stripe", "", "{}")), "/problems/webhook-signature")
	}
	w.accepted(t, post("key-2", body()).as(globexKey))
	c.pass(249 * time.Millisecond)
	wantProblem(t, w.send(t, post("key-2", body())), limited)
	c.pass(time.Millisecond)
	w.accepted(t, post("key-2", body()))
	wantProblem(t, w.send(t, post("key-2", body())), limited)
	wantRows(t, w.db, before, ofCharges(3))
	c.pass(time.Second) // as Retry-After says
	w.accept(t, "key-2", body())
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
	db := openWith(t, postgres.Options{MaxConns: 12, LockTimeout: patience, StatementTimeout: patience})
	w := serveOn(t, db, func(api *httpapi.Config) {
		api.Limits = httpapi.Limits{InFlight: 8, Authenticating: 2} // 6 of them for writes, of a merchant 4 and 3
	})
	before := rows(t, db)
	held := testdb.Begin(t, db.Pool(), `lock table ledger_events in access exclusive mode`)
	charge := func(key string) call { return post(key, body()) }

	ours := w.sendAll(t, charge("1"), charge("2"), charge("3"))
	testrun.Blocked(t, db, 3)
	wantBusy(t, w.send(t, charge("5"))) // a merchant has its share and no more
	wantProblem(t, w.send(t, get("/v1/idempotency-keys/5")), "/problems/not-found")

	theirs := w.sendAll(t, charge("1").as(globexKey), charge("2").as(globexKey), charge("3").as(globexKey))
	testrun.Blocked(t, db, 6)
	wantBusy(t, w.send(t, to("/v1/webhooks/stripe", "", "{}")))

	// What takes no request slot is served.
	wantProblem(t, w.send(t, charge("5").as("unknown")), "/problems/unauthorized")
	w.read(t, get("/healthz"))
	w.read(t, get("/readyz"))

	testdb.Must(t, held.Rollback(t.Context()))
	for _, answers := range []<-chan answer{ours, theirs} {
		for range cap(answers) {
			wantStatus(t, <-answers, http.StatusAccepted)
		}
	}

	// Nothing of the refused requests is stored, and their keys work.
	wantRows(t, db, before, ofCharges(6))
	for _, c := range []call{charge("5"), charge("4").as(globexKey)} {
		w.accepted(t, c)
	}
}

// TestSlowBodies_keepNoOthersOut: a request counts as in flight when all of it is here. Slow senders of unsigned events have
// the share of their address, and are cut off.
func TestSlowBodies_keepNoOthersOut(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	const slow, good = 40, 20 // more events than are read at once
	w := serve(t, takesEvents, behindProxy, func(api *httpapi.Config) {
		api.Limits = httpapi.Limits{InFlight: 2, Authenticating: 2}
	})
	w.server.ReadTimeout = 4 * time.Second
	address, before := w.listen(t, w.server.Handler), rows(t, w.db)
	head := "POST /v1/charges HTTP/1.1\r\n" + mine + isJSON + "\r\nIdempotency-Key: half\r\nContent-Length: 1000\r\n\r\n"
	unfinished := "POST /v1/webhooks/stripe HTTP/1.1\r\nHost: payonce\r\nX-Forwarded-For: 203.0.113.9\r\nContent-Length: 65536\r\n\r\nx"
	var events []net.Conn
	for range slow {
		dial(t, address, head)
		dial(t, address, head+body())
		events = append(events, dial(t, address, unfinished))
		wantReceived(t, w.send(t, signed(event("evt_1", "customer.created", "{}"))))
	}
	for i := range good {
		var a answer
		testrun.True(t, "it is answered, once the sockets are authenticated", func() bool {
			a = w.send(t, post("good-"+strconv.Itoa(i), body()))
			return a.status != http.StatusServiceUnavailable
		})
		wantStatus(t, a, http.StatusAccepted)
	}
	wantRows(t, w.db, before, ofCharges(good))
	for _, conn := range events { // without the end of any body
		if a := readAnswer(t, bufio.NewReader(conn)); a.status != http.StatusServiceUnavailable && a.status != http.StatusBadRequest {
			t.Errorf("a slow sender is answered %d", a.status)
		}
	}
}

// large is the request of a charge of about 40 KiB.
func large() string {
	return body("metadata", "{"+numbered(20, `"name-%d":"`+strings.Repeat("😀", 500)+`"`)+"}")
}

// TestAnswers_theirBytesInFlightAreBounded: a client that does not read its answers holds its
// merchant's share of the bytes, keeps no other merchant from its answers, and is cut off.
func TestAnswers_theirBytesInFlightAreBounded(t *testing.T) {
	t.Parallel()
	w := serve(t, func(c *httpapi.Config) { c.Limits.AnswerBytes = 150_000 })
	w.server.WriteTimeout = 5 * time.Second
	location := w.accept(t, "key-1", large()).header.Get("Location")
	theirs := w.accepted(t, post("key-1", large()).as(globexKey)).header.Get("Location")
	dial(t, w.listen(t, w.server.Handler), strings.Repeat("GET "+location+" HTTP/1.1\r\n"+mine+"\r\n", 400)) // more than the kernel keeps
	answered := func(status int) {
		t.Helper()
		testrun.Progress(t, "the answer is "+http.StatusText(status), func() (string, bool) {
			a := w.send(t, get(location))
			return http.StatusText(a.status), a.status == status
		})
	}
	answered(http.StatusServiceUnavailable)
	w.read(t, get("/v1/balances"))
	w.read(t, get(theirs).as(globexKey))
	answered(http.StatusOK) // the client that does not read was cut off
}

// TestStoreDown: it comes back, and the same request under the same key is answered.
func TestStoreDown(t *testing.T) {
	t.Parallel()
	var down atomic.Bool
	cuts := func(trip *failpoint.Trip) failpoint.Fault {
		if trip.Side == failpoint.Before && down.Load() {
			return failpoint.Cut
		}
		return failpoint.None
	}
	proxy, err := failpoint.NewProxy(t.Context(), testdb.URL(t), func() failpoint.Hook { return cuts })
	testdb.Must(t, err)
	t.Cleanup(proxy.Close)
	w := serveOn(t, testdb.OpenAt(t, proxy.URL(), postgres.Options{}))
	first := w.accept(t, "key-1", body())
	calls := []call{post("key-1", body())}
	for _, r := range w.routes(t) {
		calls = append(calls, r.under("new"), r.under("a-captured-charge"))
	}
	for _, path := range w.reads(t) {
		if strings.HasPrefix(path, "/v1/") {
			calls = append(calls, get(path))
		}
	}
	down.Store(true)
	for _, c := range calls {
		wantProblem(t, w.send(t, c), "/problems/unavailable")
		if a := w.send(t, c.like(http.MethodHead)); c.method == http.MethodGet && (a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "1") {
			t.Errorf("HEAD %s: status %d, Retry-After %q", c.path, a.status, a.header.Get("Retry-After"))
		}
	}
	w.read(t, get("/healthz")) // the process lives
	wantProblem(t, w.send(t, get("/v1/balances").with("Authorization")), "/problems/unauthorized")
	down.Store(false)
	if again := w.insist(t, post("key-1", body())); again.body != first.body {
		t.Errorf("not the first answer:\n%s%s", first.body, again.body)
	}
}

func TestPanic(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	w := serve(t, func(api *httpapi.Config) {
		takesEvents(api)
		api.Limits = httpapi.Limits{InFlight: 1, Authenticating: 1}
		api.Health = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("planted") })
		api.Carry = func(context.Context) map[string]string {
			if broken.Load() {
				panic("planted")
			}
			return nil
		}
	})
	ours := idOf(w.captured(t, "captured"))
	broken.Store(true)
	for _, path := range []string{"/readyz", "/metrics"} {
		wantProblem(t, w.send(t, get(path)), "/problems/unavailable")
	}
	for _, want := range []string{`"handler panicked"`, "planted", `"status":503`, "server.go"} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, w.log)
		}
	}
	for range 3 { // none holds a place
		for _, c := range []call{post("key-1", body()), signed(event("evt_1", "payment_intent.succeeded", intentOf(ours)))} {
			a := w.send(t, c)
			if p := wantProblem(t, a, "/problems/unavailable"); strings.Contains(p.Detail, "in flight") {
				t.Errorf("%s: a panic has kept its place: %s", c.path, a.body)
			}
		}
	}
	broken.Store(false)
	w.accepted(t, post("key-1", body()))
}
