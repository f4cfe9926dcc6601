package httpapi_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

func TestMain(m *testing.M) {
	httpapi.SetRequestTimeout(patience) // a test that holds requests may be slow
	testrun.Main(m)
}

const (
	apiKey    = "sk_test_of_acme_AhTqzM0wB2" // of acme, which has a webhook
	globexKey = "sk_test_of_globex_7uVx9cRd" // of globex, which has none
	retention = 24 * time.Hour
	patience  = testrun.Stall // bounds what the HTTP client and PostgreSQL wait for
)

// world is an API on a database of its own.
type world struct {
	server  *http.Server // of the API, without a listener
	handler http.Handler // the API, held to the contract
	db      *postgres.DB // as its owner
	api     *postgres.DB // as the api has it
	log     *testrun.Log
}

// serve makes the API on a fresh database with two merchants.
func serve(tb testing.TB, changes ...func(*httpapi.Config)) *world {
	tb.Helper()
	return serveOn(tb, testdb.Reused(tb), changes...)
}

// serveOn is serve on a database.
func serveOn(tb testing.TB, db *postgres.DB, changes ...func(*httpapi.Config)) *world {
	tb.Helper()
	register(tb, db)
	w := &world{db: db, api: testdb.As(tb, db, postgres.RoleAPI), log: &testrun.Log{}}
	config := newAPI(tb, w.api, w.log)
	for _, change := range changes {
		change(config)
	}
	w.server = httpapi.New(*config).Server()
	w.handler = judged(tb, w.server.Handler)
	return w
}

// newAPI configures an API.
func newAPI(tb testing.TB, db *postgres.DB, log io.Writer) *httpapi.Config {
	tb.Helper()
	api := &httpapi.Config{
		DB:       db,
		Intake:   &intake.Intake{DB: db, Options: idempotency.Options{Retention: retention, Wait: -1}},
		InFlight: http.StatusConflict,
		Carry:    func(context.Context) map[string]string { return nil },
		Health:   http.HandlerFunc(healthy),
		Now:      time.Now,
		Log:      slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if db != nil {
		api.Intake.Options.Read = intake.BatchedRead(db, 0)
	}
	return api
}

// healthy answers as package program does, which has the tests of it.
func healthy(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, map[string]string{"/healthz": `{"status":"ok"}`, "/readyz": `{"status":"ready"}`}[r.URL.Path])
}

func register(tb testing.TB, db *postgres.DB) {
	tb.Helper()
	b := &pgx.Batch{}
	acme := merchants.Merchant{ID: "acme", FeeBasisPoints: 300, FeeFixed: map[string]int64{"USD": 30}}
	hook := merchants.Webhook{URL: "https://shop.example/webhooks", Secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
	merchants.Register(b, acme, hook, nil)
	merchants.Register(b, merchants.Merchant{ID: "globex"}, merchants.Webhook{}, nil)
	merchants.IssueKey(b, apiKey, merchants.Grant{Merchant: "acme", Scopes: merchants.Scopes()})
	merchants.IssueKey(b, globexKey, merchants.Grant{Merchant: "globex", Scopes: merchants.Scopes()})
	testdb.Must(tb, db.Commit(tb.Context(), b))
}

// send has the API answer a call. What sockets have to do with is in limits_test.go.
func (w *world) send(t *testing.T, c call) answer {
	t.Helper()
	return direct(t, w.handler, c)
}

// accepted sends a request that must be accepted.
func (w *world) accepted(t *testing.T, c call) answer {
	t.Helper()
	a := w.send(t, c)
	if a.status != http.StatusAccepted {
		t.Fatalf("%s: status %d, want 202: %s", c.path, a.status, a.body)
	}
	return a
}

// accept asks for a charge that must be accepted.
func (w *world) accept(t *testing.T, key, body string) answer {
	t.Helper()
	return w.accepted(t, post(key, body))
}

func wantStatus(t *testing.T, a answer, want int) {
	t.Helper()
	if a.status != want {
		t.Errorf("status %d, want %d: %s", a.status, want, a.body)
	}
}

// sendAll sends requests at once. The caller receives every answer.
func (w *world) sendAll(t *testing.T, calls ...call) <-chan answer {
	t.Helper()
	answers := make(chan answer, len(calls))
	for _, c := range calls {
		go func() { answers <- direct(t, w.handler, c) }()
	}
	return answers
}

var rows = testdb.Rows

// wantRows compares the rows of every table with what they were, and what was
// added to each since.
func wantRows(tb testing.TB, db *postgres.DB, before, added map[string]int64) {
	tb.Helper()
	want := make(map[string]int64, len(before))
	for table, n := range before {
		want[table] = n + added[table]
	}
	testrun.Same(tb, "rows", want, rows(tb, db))
}

// ofCharges are the rows that n charges add when they are accepted.
func ofCharges(n int64) map[string]int64 {
	return map[string]int64{"idempotency_keys": n, "ledger_events": n, "ledger_postings": n, "outbox": n}
}

// decision is what a worker decides about a charge.
type decision = func(domain.Charge) []domain.Event

// happens is the decision to record events.
func happens(events ...domain.Event) decision {
	return func(domain.Charge) []domain.Event { return events }
}

// paid is a payment that was started under an intent, and took the money.
func paid(intent string) decision {
	return func(c domain.Charge) []domain.Event {
		return append([]domain.Event{domain.PaymentStarted{Provider: domain.Provider, PaymentIntent: intent}}, c.Capture(intent, c.Money)...)
	}
}

// returned is a refund that succeeded.
func returned(id string) decision {
	return func(c domain.Charge) []domain.Event {
		r, _ := c.Refund(id)
		return r.Resolve("re_9", false, "")
	}
}

// happen commits decisions about the charge at a location, as a worker would.
func (w *world) happen(t *testing.T, location string, decisions ...decision) {
	t.Helper()
	s, err := ledger.Load(t.Context(), w.db, strings.TrimPrefix(location, "/v1/charges/"))
	testdb.Must(t, err)
	for _, decide := range decisions {
		s = testdb.Appended(t, w.db, s, testdb.Cause("worker"), decide(s.Charge)...)
	}
}

// captured accepts and captures a charge of 2000.
func (w *world) captured(t *testing.T, key string) (location string) {
	t.Helper()
	location = w.accept(t, key, body()).header.Get("Location")
	w.happen(t, location, paid("pi_"+strings.TrimPrefix(location, "/v1/charges/")))
	return location
}

// openWith opens a pool with these options on an empty database.
func openWith(t *testing.T, o postgres.Options) *postgres.DB {
	t.Helper()
	return testdb.OpenAt(t, testdb.Reused(t).Pool().Config().ConnString(), o)
}

// waitingBetween waits until least to most statements wait for a lock.
func waitingBetween(t *testing.T, db *postgres.DB, least, most int) {
	t.Helper()
	testrun.Row(t, db, `
select count(*) between $1 and $2
  from pg_stat_activity
 where datname = current_database()
   and wait_event_type = 'Lock'`, least, most)
}

// insist sends a request until it is answered: on a busy machine a statement may take longer than it may.
func (w *world) insist(t *testing.T, c call) (a answer) {
	t.Helper()
	testrun.Progress(t, "GET "+c.path+" is answered", func() (seen string, done bool) {
		a = w.send(t, c)
		return a.body, a.status != http.StatusServiceUnavailable
	})
	return a
}

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
