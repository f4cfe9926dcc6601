package httpapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

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

// broken is a body whose sender makes the reader panic.
type broken struct{ io.Reader }

func (broken) Read([]byte) (int, error) { panic("planted") }

func TestPanic(t *testing.T) {
	t.Parallel()
	w := serve(t, func(api *httpapi.Config) {
		takesEvents(api)
		api.Limits = httpapi.Limits{InFlight: 1, Authenticating: 1}
		api.Health = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("planted") })
	})
	for _, path := range []string{"/readyz", "/metrics"} {
		wantProblem(t, w.send(t, get(path)), "/problems/unavailable")
	}
	for _, want := range []string{`"handler panicked"`, "planted", `"status":503`, "server.go"} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, w.log)
		}
	}
	for range 3 { // none holds a place
		for _, c := range []call{post("key-1", body()), signed("{}")} {
			r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, broken{})
			r.Header = c.header
			recorder := httptest.NewRecorder()
			w.handler.ServeHTTP(recorder, r)
			a := answer{recorder.Code, recorder.Header(), recorder.Body.String()}
			if p := wantProblem(t, a, "/problems/unavailable"); strings.Contains(p.Detail, "in flight") {
				t.Errorf("%s: a panic has kept its place: %s", c.path, a.body)
			}
		}
	}
	w.accept(t, "key-1", body())
}
