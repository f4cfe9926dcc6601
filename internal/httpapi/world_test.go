package httpapi_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

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
	*httpapi.RequestTimeout = patience // a test that holds requests may be slow
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

// send has the API answer a call. What sockets have to do with is in hostile_test.go and limits_test.go.
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

// read sends a request that must be answered 200.
func (w *world) read(t *testing.T, c call) {
	t.Helper()
	wantStatus(t, w.send(t, c), http.StatusOK)
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
