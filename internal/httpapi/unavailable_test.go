package httpapi_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
)

// calls are requests to every route that takes a key, under a new one and one that has its
// answer, and to every path that is read.
func (w *world) calls(t *testing.T) (all []call) {
	t.Helper()
	for _, r := range w.routes(t) {
		all = append(all, r.under("new"), r.under("a-captured-charge"))
	}
	for _, path := range w.reads(t) {
		if path != "/healthz" && path != "/readyz" {
			all = append(all, get(path))
		}
	}
	return all
}

// wantUnavailable checks the answers of an API whose store is down.
func wantUnavailable(t *testing.T, w *world, calls []call) {
	t.Helper()
	for _, c := range calls {
		wantProblem(t, w.send(t, c), "/problems/unavailable")
		if a := w.send(t, c.like(http.MethodHead)); c.method == http.MethodGet && (a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "1") {
			t.Errorf("HEAD %s: status %d, Retry-After %q", c.path, a.status, a.header.Get("Retry-After"))
		}
	}
	w.read(t, get("/healthz")) // the process lives
	wantProblem(t, w.send(t, get("/readyz")), "/problems/unavailable")
	wantProblem(t, w.send(t, get("/v1/balances").with("Authorization")), "/problems/unauthorized")
	if !strings.Contains(w.log.String(), `"error":`) {
		t.Error("the log does not say why")
	}
}

// elsewhere runs a statement about the database of db in another one.
func elsewhere(t *testing.T, other, statement string, db *postgres.DB) {
	t.Helper()
	name := db.Pool().Config().ConnConfig.Database
	conn, err := pgx.Connect(t.Context(), other)
	testdb.Must(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	statement = strings.ReplaceAll(statement, "{database}", pgx.Identifier{name}.Sanitize())
	testdb.Exec(t, conn, statement)
}

func TestStoreDown(t *testing.T) {
	t.Parallel()
	t.Run("its server is out of reach", func(t *testing.T) {
		t.Parallel()
		proxy := failpoint.StartCutter(t, testdb.URL(t))
		w := serveOn(t, testdb.OpenAt(t, proxy.URL(), postgres.Options{}))
		calls := w.calls(t)
		proxy.Close()
		wantUnavailable(t, w, calls)
	})
	t.Run("it comes back, and the same request under the same key is answered", func(t *testing.T) {
		t.Parallel()
		other := testdb.Empty(t)
		w := serve(t)
		first := w.accept(t, "key-1", body())
		allow := sync.OnceFunc(func() { elsewhere(t, other, `alter database {database} with allow_connections true`, w.db) })
		defer allow() // for the tests that get this database next
		elsewhere(t, other, `alter database {database} with allow_connections false`, w.db)
		elsewhere(t, other, `select pg_terminate_backend(pid) from pg_stat_activity where '"' || datname || '"' = '{database}'`, w.db)
		w.api.Pool().Reset()
		wantUnavailable(t, w, []call{post("key-1", body()), get("/v1/nothing")})
		allow()
		if again := w.accept(t, "key-1", body()); again.body != first.body {
			t.Errorf("not the first answer:\n%s%s", first.body, again.body)
		}
		w.insist(t, get("/readyz"))
	})
}

// broken is a body whose sender makes the reader panic.
type broken struct{ io.Reader }

func (broken) Read([]byte) (int, error) { panic("planted") }

func TestPanic(t *testing.T) {
	t.Parallel()
	w := serve(t, func(api *httpapi.Config) {
		takesEvents(api)
		api.Limits = httpapi.Limits{InFlight: 1, PerMerchant: 1, Authenticating: 1, Auditing: 1}
		api.Ready = func(context.Context) (string, error) { panic("planted") }
		api.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("planted") })
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
