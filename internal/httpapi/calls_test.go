package httpapi_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// call is one request.
type call struct {
	method, path, body string
	header             http.Header
}

// post asks for a charge of acme under a key.
func post(key, body string) call {
	c := get("/v1/charges").with("Content-Type", "application/json").with("Idempotency-Key", key)
	c.method, c.body = http.MethodPost, body
	return c
}

// get reads as acme.
func get(path string) call {
	return call{method: http.MethodGet, path: path, header: http.Header{"Authorization": {"Bearer " + apiKey}}}
}

// with is the call with another header: these values, or none at all.
func (c call) with(name string, values ...string) call {
	c.header = c.header.Clone()
	c.header[http.CanonicalHeaderKey(name)] = values
	return c
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
}

// direct calls a handler itself: net/http would refuse some of the headers and paths.
func direct(tb testing.TB, handler http.Handler, c call) answer {
	tb.Helper()
	r := httptest.NewRequestWithContext(tb.Context(), c.method, "/", strings.NewReader(c.body))
	path, query, _ := strings.Cut(c.path, "?")
	u, err := url.Parse(path)
	if err != nil {
		u = &url.URL{Path: path}
	}
	u.RawQuery, r.URL, r.Header, r.RemoteAddr = query, u, c.header.Clone(), "127.0.0.1:80"
	maps.DeleteFunc(r.Header, func(_ string, values []string) bool { return len(values) == 0 })
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, r)
	if c.method == http.MethodHead {
		recorder.Body.Reset() // as a server does
	}
	return answer{recorder.Code, recorder.Header(), recorder.Body.String()}
}

// to is a keyed request to a path.
func to(path, key, body string) call {
	c := post(key, body)
	c.path = path
	return c
}

// data are the members of each element of a list.
func data(t *testing.T, a answer) []map[string]any {
	t.Helper()
	var list struct {
		Data []map[string]any `json:"data"`
	}
	if err := json.Unmarshal([]byte(a.body), &list); err != nil || a.status != http.StatusOK {
		t.Fatalf("status %d, %v: %s", a.status, err, a.body)
	}
	return list.Data
}

// members decodes a JSON object.
func members(t *testing.T, raw string) map[string]any {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(raw), &object); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	return object
}

// body is a charge request with members as they are written here: pairs of a
// name and its raw JSON, which replace or add a member; "" leaves it out.
func body(changes ...string) string {
	members := []string{
		"order_id", `"order-1"`,
		"amount", "2000",
		"currency", `"USD"`,
		"payment_method", `"pm_card_visa"`,
	}
	for change := range slices.Chunk(changes, 2) {
		if at := slices.Index(members, change[0]); at >= 0 {
			members[at+1] = change[1]
		} else {
			members = append(members, change...)
		}
	}
	var written []string
	for member := range slices.Chunk(members, 2) {
		if member[1] != "" {
			written = append(written, `"`+member[0]+`":`+member[1])
		}
	}
	return "{" + strings.Join(written, ",") + "}"
}

// text is a JSON string of n characters of two bytes each.
func text(n int) string { return `"` + strings.Repeat("é", n) + `"` }

// items is a JSON array of n different items.
func items(n int) string { return "[" + numbered(n, `{"sku":"sku-%d","quantity":1}`) + "]" }

// pairs is a JSON object of n pairs.
func pairs(n int) string { return "{" + numbered(n, `"name-%d":"value"`) + "}" }

// numbered are n parts of JSON.
func numbered(n int, format string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(list, ",")
}

// route takes a key: a request to it that is accepted.
type route struct {
	name      string
	operation string
	path      string
	body      string
}

func (r route) under(key string) call { return to(r.path, key, r.body) }

// routes are all routes that take a key, on charges of their own.
func (w *world) routes(t *testing.T) []route {
	t.Helper()
	open := w.accept(t, "an-open-charge", body("order_id", `"open"`)).header.Get("Location")
	paid := w.captured(t, "a-captured-charge")
	return []route{
		{"a charge", "POST /v1/charges", "/v1/charges", body()},
		{"a cancellation", "POST /v1/charges/:id/cancel", open + "/cancel", "{}"},
		{"a refund", "POST /v1/charges/:id/refunds", paid + "/refunds", `{"amount":1}`},
	}
}

// wantSame compares two answers, but for some headers.
func wantSame(t *testing.T, what string, want, got answer, except ...string) {
	t.Helper()
	for _, h := range []http.Header{want.header, got.header} {
		for _, name := range append(except, "Date") {
			h.Del(name)
		}
	}
	testrun.Same(t, what, want, got, cmp.AllowUnexported(answer{}))
}

// wantReplay compares everything that a replay repeats.
func wantReplay(t *testing.T, first, again answer) {
	t.Helper()
	if again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("not the first answer: it says %v", again.header)
	}
	want, got := first, again
	want.header, got.header = first.header.Clone(), again.header.Clone()
	wantSame(t, "not the first answer", want, got, "Idempotent-Replayed", "X-Request-Id")
}

// holdAt stores a key in a transaction that stays open, as a rival would.
func holdAt(t *testing.T, db *postgres.DB, operation, key string) pgx.Tx {
	t.Helper()
	return testdb.Begin(t, db.Pool(), `
insert into idempotency_keys (scope, operation, key, fingerprint, status_code, body, expires_at)
values ('acme', $1, $2, 'another', 202, '{}', clock_timestamp() + interval '1 hour')`, operation, key)
}

// reads are all paths that are read, some of nothing.
func (w *world) reads(t *testing.T) []string {
	t.Helper()
	charge := w.captured(t, "a-charge-to-read")
	refund := w.accepted(t, to(charge+"/refunds", "a-refund-to-read", `{"amount":1}`)).header.Get("Location")
	return []string{
		charge, charge + "/events", charge + "/refunds", refund, "/v1/idempotency-keys/a-charge-to-read", "/v1/charges", "/v1/balances", "/healthz", "/readyz",
		"/v1/charges/ch_unknown", "/v1/charges/ch_unknown/events", "/v1/charges/ch_unknown/refunds", charge + "/refunds/re_unknown",
		"/v1/idempotency-keys/unknown", "/v1/nothing", "/nowhere",
	}
}

// like makes a read into a call of another method.
func (c call) like(method string) call {
	c.method = method
	return c
}

// manual are the cells of those rows of a page of docs/reference that begin as given.
func manual(page, beginning string) (rows [][]string) {
	text, err := os.ReadFile("../../docs/reference/" + page)
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| `"+beginning) {
			cells := strings.Split(strings.Trim(line, "| \n"), " | ")
			cells[0] = strings.Trim(cells[0], "`")
			rows = append(rows, cells)
		}
	}
	return rows
}

// wantProblem checks that an answer is a problem of a type, and returns it. The contract judges the
// rest of it: its status, and what it says about trying again.
func wantProblem(t *testing.T, a answer, kind string) httpapi.Problem {
	t.Helper()
	p := readProblem(t, a)
	if p.Type != kind || p.Status != a.status || p.Retryable != (a.header.Get("Retry-After") != "") || a.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("status %d, want %s, %v: %s", a.status, kind, a.header, a.body)
	}
	return p
}

func readProblem(t *testing.T, a answer) httpapi.Problem {
	t.Helper()
	var p httpapi.Problem
	if err := json.Unmarshal([]byte(a.body), &p, json.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("status %d with %q: %v", a.status, a.body, err)
	}
	return p
}

func wantPointers(t *testing.T, p httpapi.Problem, want ...string) {
	t.Helper()
	var got []string
	for _, e := range p.Errors {
		if got = append(got, e.Pointer); e.Detail == "" {
			t.Errorf("%s has no detail", e.Pointer)
		}
	}
	testrun.Same(t, "pointers", want, got, cmpopts.EquateEmpty())
}
