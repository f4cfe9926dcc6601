package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
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
		wantStatus(t, w.send(t, get("/healthz")), http.StatusOK)
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
	wantStatus(t, w.send(t, get("/healthz")), http.StatusOK)
	wantStatus(t, w.send(t, get("/readyz")), http.StatusOK)

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
	testrun.Long(t, "it takes a large part of the time")
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
	testrun.Long(t, "its responses are long")
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
	wantStatus(t, w.send(t, get("/v1/balances")), http.StatusOK)
	wantStatus(t, w.send(t, get(theirs).as(globexKey)), http.StatusOK)
	answered(http.StatusOK) // the client that does not read was cut off
}

// TestStoreDown: the server does not answer, or its disk is full. It comes back, and the same request under
// the same key is answered.
func TestStoreDown(t *testing.T) {
	testrun.Long(t, "it repeats each request")
	t.Parallel()
	const diskFull failpoint.Fault = "53100"
	var down atomic.Pointer[failpoint.Fault]
	breaks := func(trip *failpoint.Trip) failpoint.Fault {
		if fault := down.Load(); fault != nil && trip.Side == failpoint.Before {
			return *fault
		}
		return failpoint.None
	}
	proxy, err := failpoint.NewProxy(t.Context(), testdb.URL(t), func() failpoint.Hook { return breaks })
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
	for _, fault := range []failpoint.Fault{failpoint.Cut, diskFull} {
		down.Store(&fault)
		for _, c := range calls {
			wantProblem(t, w.send(t, c), "/problems/unavailable")
			if a := w.send(t, c.like(http.MethodHead)); c.method == http.MethodGet && (a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "1") {
				t.Errorf("HEAD %s: status %d, Retry-After %q", c.path, a.status, a.header.Get("Retry-After"))
			}
		}
		wantStatus(t, w.send(t, get("/healthz")), http.StatusOK) // the process lives
		wantProblem(t, w.send(t, get("/v1/balances").with("Authorization")), "/problems/unauthorized")
		down.Store(nil)
		if again := w.insist(t, post("key-1", body())); again.body != first.body {
			t.Errorf("not the first answer after %s:\n%s%s", fault, first.body, again.body)
		}
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

// What a client library would never send is written by hand here.

const mine = "Host: payonce\r\nAuthorization: Bearer " + apiKey + "\r\n"

// asking is a request for a charge under a key, with further headers.
func asking(key string, lines ...string) string {
	sent := body()
	return "POST /v1/charges HTTP/1.1\r\n" + mine + "Idempotency-Key: " + key + "\r\n" +
		strings.Join(append(lines, "Content-Length: "+strconv.Itoa(len(sent))), "\r\n") + "\r\n\r\n" + sent
}

// inChunks is one whose body says in chunks how long it is, and in a header too.
func inChunks(key, sent string, lines ...string) string {
	return "POST /v1/charges HTTP/1.1\r\n" + mine + "Content-Type: application/json\r\nIdempotency-Key: " + key + "\r\n" +
		strings.Join(append(lines, "Transfer-Encoding: chunked"), "\r\n") + "\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(sent), sent)
}

const isJSON = "Content-Type: application/json"

// TestHostileRequest_isRefused: each is refused by a problem of the contract, and stores
// nothing.
func TestHostileRequest_isRefused(t *testing.T) {
	t.Parallel()
	w := serve(t)
	address := w.listen(t, w.handler)
	before := rows(t, w.db)
	for _, test := range []struct{ name, sent, want string }{
		{"a key over two lines", asking("a\r\n b", isJSON), "/problems/idempotency-key-invalid"},
		{
			"a key in a trailer", strings.Replace(inChunks("a", body(), "Trailer: Idempotency-Key"), "Idempotency-Key: a\r\n", "", 1),
			"/problems/idempotency-key-missing",
		},
		{"a body that does not say its size", inChunks("a", padded(body(), maxBody+1)), "/problems/too-large"},
		{"another server, and no path", "GET http://other.example HTTP/1.1\r\n" + mine + "\r\n", "/problems/not-found"},
		{"the server as a whole", "OPTIONS * HTTP/1.1\r\n" + mine + "\r\n", "/problems/not-found"},
		{"a tunnel", "CONNECT other.example:443 HTTP/1.1\r\n" + mine + "\r\n", "/problems/not-found"},
		{"a method in lower case", "get /v1/balances HTTP/1.1\r\n" + mine + "\r\n", "/problems/method-not-allowed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			wantProblem(t, readAnswer(t, bufio.NewReader(dial(t, address, test.sent))), test.want)
		})
	}
	wantRows(t, w.db, before, nil)
}

// TestSmuggledRequest_isNotServed: a body that says in two ways how long it is may end
// elsewhere for a proxy in front than for us. What follows it on the connection
// is not taken for a request.
func TestSmuggledRequest_isNotServed(t *testing.T) {
	t.Parallel()
	w := serve(t)
	address := w.listen(t, w.handler)
	before := rows(t, w.db)
	for i, lengths := range [][]string{{"Content-Length: 4"}, {"Content-Length: 100000"}, nil} {
		key := "outer-" + strconv.Itoa(i)
		answers := bufio.NewReader(dial(t, address, inChunks(key, body(), lengths...)+asking("inner", isJSON)))
		a := readAnswer(t, answers)
		if a.status != http.StatusAccepted || a.header.Get("Idempotency-Key") != key {
			t.Errorf("%q: status %d: %s", lengths, a.status, a.body)
		}
		if more, err := io.ReadAll(answers); len(more) > 0 {
			t.Errorf("%q: the connection goes on (%v): %s", lengths, err, more)
		}
	}
	wantRows(t, w.db, before, ofCharges(3))
}

func readAnswer(t *testing.T, from *bufio.Reader) answer {
	t.Helper()
	response, err := http.ReadResponse(from, nil)
	testdb.Must(t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	testdb.Must(t, err)
	return answer{status: response.StatusCode, header: response.Header, body: string(raw)}
}

// listen starts the server with a handler: w.handler, which answers when it has all of the answer, or the
// server's own.
func (w *world) listen(t *testing.T, handler http.Handler) (address string) {
	t.Helper()
	listener := httptest.NewUnstartedServer(nil)
	listener.Config, w.server.Handler = w.server, handler
	listener.Start()
	t.Cleanup(listener.Close)
	t.Cleanup(listener.CloseClientConnections)
	return listener.Listener.Addr().String()
}

// dial writes the beginning of a request, and returns the connection, which a
// read ends after patience.
func dial(t *testing.T, address, beginning string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	testdb.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	testdb.Must(t, conn.SetDeadline(time.Now().Add(patience)))
	if _, err := io.WriteString(conn, beginning); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestServer(t *testing.T) {
	t.Parallel()
	server := httpapi.New(*newAPI(t, nil, io.Discard)).Server()
	for _, bound := range []time.Duration{server.ReadHeaderTimeout, server.ReadTimeout, server.WriteTimeout, server.IdleTimeout} {
		if bound <= 0 || bound > time.Minute || server.ReadHeaderTimeout > server.ReadTimeout || server.MaxHeaderBytes != 16<<10 {
			t.Errorf("server: %+v", server)
		}
	}
	const soon, never = 50 * time.Millisecond, time.Hour
	begun, asks := "Content-Length: 1000\r\n\r\n"+body(), "Expect: 100-continue\r\nContent-Length: "
	for name, test := range map[string]struct {
		key, sent, problem string
		readTimeout        time.Duration
	}{
		"a body that never ends is not waited for":     {apiKey, begun, "/problems/malformed", soon},
		"a body that breaks off is refused":            {apiKey, begun, "/problems/malformed", never},
		"an announced body is refused for its size":    {apiKey, asks + "65537\r\n\r\n", "/problems/too-large", soon},
		"an announced body is refused without its key": {"unknown", asks + "10\r\n\r\n", "/problems/unauthorized", soon},
	} {
		t.Run(name+", and stores nothing", func(t *testing.T) {
			t.Parallel()
			w := serve(t)
			w.server.ReadTimeout = test.readTimeout
			before := rows(t, w.db)
			head := strings.Replace(mine, apiKey, test.key, 1) + isJSON + "\r\nIdempotency-Key: key-1\r\n"
			conn := dial(t, w.listen(t, w.server.Handler), "POST /v1/charges HTTP/1.1\r\n"+head+test.sent)
			if half, ok := conn.(*net.TCPConn); test.readTimeout == never && (!ok || half.CloseWrite() != nil) {
				t.Fatal("the connection cannot be closed by half")
			}
			from := bufio.NewReader(conn)
			wantProblem(t, readAnswer(t, from), test.problem)
			if _, err := io.ReadAll(from); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is still open")
			}
			wantRows(t, w.db, before, nil)
		})
	}
}
