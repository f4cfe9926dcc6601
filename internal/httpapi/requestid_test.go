package httpapi_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/google/uuid"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// TestEveryAnswerHasTheRequestIDOfItsLogLine: the caller's own id, or else one of
// ours, is on whatever is answered and in the line that tells of it.
func TestEveryAnswerHasTheRequestIDOfItsLogLine(t *testing.T) {
	pgtest.Long(t, "it makes a database for each of many cases")
	t.Parallel()
	plain := func(*httpapi.API) {}
	for _, test := range []struct {
		name   string
		change func(*httpapi.API)
		first  *call // sent before
		call   call
		status int
	}{
		{"what is accepted", plain, nil, post("key-1", body()), http.StatusAccepted},
		{"a replay", plain, new(post("key-1", body())), post("key-1", body()), http.StatusAccepted},
		{"a read", plain, nil, get("/v1/balances"), http.StatusOK},
		{"health", plain, nil, get("/healthz"), http.StatusOK},
		{"a malformed body", plain, nil, post("key-1", "{"), http.StatusBadRequest},
		{"no API key", plain, nil, get("/v1/balances").with("Authorization"), http.StatusUnauthorized},
		{"no such path", plain, nil, get("/nowhere"), http.StatusNotFound},
		{"no such path of the API", plain, nil, get("/v1/nowhere"), http.StatusNotFound},
		{"another method", plain, nil, get("/v1/charges").like(http.MethodPut), http.StatusMethodNotAllowed},
		{"a large body", plain, nil, post("key-1", padded(maxBody+1)), http.StatusRequestEntityTooLarge},
		{"another media type", plain, nil, post("key-1", body()).with("Content-Type", "text/plain"), http.StatusUnsupportedMediaType},
		{"an invalid body", plain, nil, post("key-1", body("amount", "0")), http.StatusUnprocessableEntity},
		{
			"one too many in a second",
			func(api *httpapi.API) { api.Limits.PerSecond, api.Now = 1, new(clock).now },
			new(get("/v1/balances")), get("/v1/balances"), http.StatusTooManyRequests,
		},
		{"a panic", func(api *httpapi.API) { api.Intake = nil }, nil, post("key-1", body()), http.StatusServiceUnavailable},
		{"a preflight", func(api *httpapi.API) { api.Origins = []string{shop} }, nil, preflight(shop), http.StatusNoContent},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := serveOn(t, pgtest.Reused(t), test.change)
			if test.first != nil {
				w.send(t, *test.first)
			}
			wantLogged(t, w, test.call, "req-of-mine", test.status)
			again := test.status
			if test.status == http.StatusAccepted || test.first == nil {
				wantLogged(t, w, test.call, "", again)
			}
		})
	}

	t.Run("a store that is down", func(t *testing.T) {
		t.Parallel()
		w := serve(t)
		dropStore(t, w)
		wantLogged(t, w, get("/v1/balances"), "req-of-mine", http.StatusServiceUnavailable)
		wantLogged(t, w, get("/readyz"), "", http.StatusServiceUnavailable)
	})

	t.Run("too many in flight", func(t *testing.T) {
		t.Parallel()
		w := serveOn(t, pgtest.Reused(t), func(api *httpapi.API) { api.Limits.InFlight = 1 })
		held := hold(t, w.db, "key-1")
		stuck := &crowd{answers: make(chan answer, 1)}
		stuck.send(t, w, post("key-1", body()))
		waiting(t, w.db, 1)
		for i := range 2 {
			wantLogged(t, w, get("/v1/balances"), "req-"+strconv.Itoa(i), http.StatusServiceUnavailable)
		}
		if err := held.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		stuck.all.Wait()
	})
}

// wantLogged sends a request under an id of its own, or under none.
func wantLogged(t *testing.T, w *world, c call, id string, status int) {
	t.Helper()
	if id != "" {
		c = c.with("X-Request-Id", id)
	}
	a := w.send(t, c)
	got := a.header.Get("X-Request-Id")
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	if id != "" && got != id || id == "" && uuid.Validate(got) != nil {
		t.Errorf("X-Request-Id is %q, sent was %q", got, id)
	}
	lines := 0
	for _, line := range w.log.lines(t) {
		if line["request_id"] == got {
			lines++
			if line["status"] != float64(status) {
				t.Errorf("the line says %v", line)
			}
		}
	}
	if lines == 0 {
		t.Errorf("no line has %q:\n%s", got, w.log)
	}
}
