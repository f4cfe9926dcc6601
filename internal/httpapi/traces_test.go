package httpapi_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
)

// tracer notes the requests that it is told of, and numbers them.
type tracer struct {
	mu     sync.Mutex
	served []servedRequest
}

type servedRequest struct {
	Method, Route string
	Parents       []string
	Status        int
	Key           httpapi.KeyResult
}

type traceKey struct{}

func (o *tracer) trace(api *httpapi.Config) {
	api.Observer.Serving = func(ctx context.Context, method, route string, parents []string) (context.Context, func(int, httpapi.KeyResult)) {
		r := servedRequest{Method: method, Route: route, Parents: parents}
		trace := strings.Join(parents, "+") + "/ours"
		return context.WithValue(ctx, traceKey{}, trace), func(status int, key httpapi.KeyResult) {
			o.mu.Lock()
			defer o.mu.Unlock()
			r.Status, r.Key = status, key
			o.served = append(o.served, r)
		}
	}
	api.Carry = func(ctx context.Context) map[string]string {
		trace, _ := ctx.Value(traceKey{}).(string)
		return map[string]string{"traceparent": trace}
	}
}

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestServing(t *testing.T) {
	t.Parallel()
	told := &tracer{}
	w := serveOn(t, testdb.Reused(t), told.trace)
	for _, c := range []call{
		post("key", body()).with("Traceparent", parent),
		post("key", body()).with("Traceparent", "another"),
		post("key", body("amount", "1")).with("Traceparent", "one", "two"),
		get("/v1/charges/ch_1").with("Authorization", "Bearer of-nobody"),
		post("key-2", body()).with("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-4242424242424242-01"),
		get("/healthz").with("Traceparent", parent),
		get("/metrics"),
		get("/nowhere").with("Traceparent", parent),
	} {
		w.send(t, c)
	}
	told.mu.Lock()
	defer told.mu.Unlock()
	want := []servedRequest{
		{Method: "POST", Route: "/v1/charges", Parents: []string{parent}, Status: http.StatusAccepted, Key: httpapi.KeyFirst},
		{Method: "POST", Route: "/v1/charges", Parents: []string{"another"}, Status: http.StatusAccepted, Key: httpapi.KeyReplayed},
		{Method: "POST", Route: "/v1/charges", Parents: []string{"one", "two"}, Status: http.StatusUnprocessableEntity, Key: httpapi.KeyReused},
		{Method: "GET", Route: "/v1/charges/:id", Status: http.StatusUnauthorized},
		// What could be a card number is not looked at.
		{Method: "POST", Route: "/v1/charges", Status: http.StatusAccepted, Key: httpapi.KeyFirst},
	}
	if diff := cmp.Diff(want, told.served); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	// The replay left nothing.
	if diff := cmp.Diff([]string{parent + "/ours", "/ours"}, traces(t, w.db, "outbox")); diff != "" {
		t.Errorf("traces of messages (-want +got):\n%s", diff)
	}
}

// The provider's events lead to messages too.
func TestServingEvents(t *testing.T) {
	t.Parallel()
	told := &tracer{}
	w := serveOn(t, testdb.Reused(t), func(api *httpapi.Config) { takesEvents(api); told.trace(api) })
	charge := idOf(w.accept(t, "key-1", body()).header.Get("Location"))
	e := signed(event("evt_1", "payment_intent.succeeded", intentOf(charge)))
	wantReceived(t, w.send(t, e.with("Traceparent", parent)))
	wantReceived(t, w.send(t, e.with("Traceparent", "another"))) // is the same event
	if diff := cmp.Diff([]string{parent + "/ours"}, traces(t, w.db, "inbox")); diff != "" {
		t.Errorf("traces of messages (-want +got):\n%s", diff)
	}
}

// traces are what the messages in a table carry, oldest first.
func traces(t *testing.T, db *postgres.DB, table string) []string {
	t.Helper()
	order := map[string]string{"outbox": `"offset"`, "inbox": "id"}[table]
	found, err := db.Query(t.Context(), `select coalesce(metadata ->> 'traceparent', 'none') from `+table+` order by `+order)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}
