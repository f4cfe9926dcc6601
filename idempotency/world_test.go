package idempotency_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// openPool is a pool on a database of its own for an example. It has the tables of
// idempotency.Schema and of createSales.
func openPool() (pool *pgxpool.Pool, end func()) {
	db, end := testdb.Example()
	if _, err := db.Pool().Exec(context.Background(), createSales); err != nil {
		panic(err)
	}
	return db.Pool(), end
}

// database is one that each entry takes.
type database struct{ *postgres.DB }

func (d database) Begin(ctx context.Context) (pgx.Tx, error) { return d.Pool().Begin(ctx) }

func on(db *postgres.DB) database { return database{db} }

// patient is a database whose sessions wait 20 ms for a lock.
func patient(t *testing.T) *postgres.DB {
	t.Helper()
	return testdb.OpenAt(t, testdb.URL(t), postgres.Options{LockTimeout: 20 * time.Millisecond})
}

// call is a request as each entry can be asked.
type call struct {
	scope   string // acme if empty
	key     string // k1 if empty
	request string // a JSON text
	options idempotency.Options
	work    func(exec func(sql string) error) (answer string, err error)
}

// seen is what the caller of an entry gets.
type seen struct {
	Answer   string
	Replayed bool
	Err      error
}

// entry is one of the ways into the package.
type entry struct {
	name, operation string
	ask             func(ctx context.Context, db database, c call) seen
}

var entries = []entry{
	{"Receive", "pay.v1", receive},
	{"Once", "pay.v1", once},
	{"Middleware", "HTTP", post},
}

func (c call) identify() (idempotency.Key, idempotency.Request) {
	request := idempotency.Request{Fingerprint: idempotency.Fingerprint([]byte(c.request)), Canonical: []byte(c.request)}
	return idempotency.Key{Scope: c.scope, Operation: "pay.v1", Value: c.key}, request
}

func receive(ctx context.Context, db database, c call) seen {
	key, request := c.identify()
	got, err := idempotency.Receive(ctx, db, key, request, c.options, func(_ context.Context, b *pgx.Batch, _ time.Time) (idempotency.Answer, error) {
		answer, err := c.work(func(sql string) error { b.Queue(sql); return nil })
		return idempotency.Answer{StatusCode: http.StatusAccepted, Body: []byte(`"` + answer + `"`)}, err
	})
	return seen{strings.Trim(string(got.Body), `"`), got.Replayed && err == nil, err}
}

func once(ctx context.Context, db database, c call) (s seen) {
	key, request := c.identify()
	s.Answer, s.Replayed, s.Err = idempotency.Once(ctx, db, key, request, c.options, func(ctx context.Context, tx pgx.Tx) (string, error) {
		return c.work(func(sql string) error { _, err := tx.Exec(ctx, sql); return err })
	})
	return s
}

func post(ctx context.Context, db database, c call) (s seen) {
	o := idempotency.HTTPOptions{
		Options: c.options, Scope: func(*http.Request) string { return c.scope },
		Error: func(_ http.ResponseWriter, _ *http.Request, _ int, err error) { s.Err = err },
	}
	handler := idempotency.Middleware(db, o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := c.work(func(sql string) error { _, err := idempotency.Tx(r.Context()).Exec(r.Context(), sql); return err })
		if err != nil {
			s.Err = err
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, `"`+answer+`"`)
	}))
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/pay", bytes.NewBufferString(c.request))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", c.key)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if s.Err == nil {
		s.Answer, s.Replayed = strings.Trim(w.Body.String(), `"`), w.Header().Get("Idempotent-Replayed") == "true"
	}
	return s
}

// do asks with defaults for what the call does not say.
func (e entry) do(ctx context.Context, db database, c call) seen {
	c.scope, c.key, c.request = cmp.Or(c.scope, "acme"), cmp.Or(c.key, "k1"), cmp.Or(c.request, `{"amount":1}`)
	if c.work == nil {
		c.work = effect
	}
	return e.ask(ctx, db, c)
}

const insertEffect = `insert into outbox (topic, message_id, payload, metadata) values ('t', 'effect', '', '{}')`

// effect is work with one effect that is not unique.
func effect(exec func(sql string) error) (string, error) { return "done", exec(insertEffect) }

func wantEffects(t *testing.T, db *postgres.DB, want int) {
	t.Helper()
	if got := testdb.One[int](t, db, `select count(*) from outbox`); got != want {
		t.Errorf("%d effects, want %d", got, want)
	}
}

func wantSeen(t *testing.T, got seen, answer string, replayed bool) {
	t.Helper()
	if want := (seen{answer, replayed, nil}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func wantError(t *testing.T, got seen, want error) {
	t.Helper()
	if !errors.Is(got.Err, want) || got.Replayed {
		t.Errorf("got %+v, want the error %v", got, want)
	}
}

// rival claims the key of an entry in a transaction that stays open.
func (e entry) rival(t *testing.T, db *postgres.DB) pgx.Tx {
	t.Helper()
	tx, b := testdb.Begin(t, db.Pool(), `select 1`), &pgx.Batch{}
	answer := idempotency.Answer{StatusCode: http.StatusAccepted, Body: []byte(`"of the rival"`)}
	idempotency.Claim(b, idempotency.Key{Scope: "acme", Operation: e.operation, Value: "k1"}, idempotency.Request{}, answer, time.Now().Add(time.Hour))
	testdb.Must(t, tx.SendBatch(t.Context(), b).Close())
	return tx
}

// trips counts round trips, and cuts the connection at one of them.
type trips struct {
	side   failpoint.Side
	away   bool // the connections after that too
	n, cut atomic.Int64
}

// proxied is a way to a database whose round trips are counted.
func (c *trips) proxied(t *testing.T, url string) string {
	t.Helper()
	proxy, err := failpoint.NewProxy(t.Context(), url, func() failpoint.Hook { return c.count })
	testdb.Must(t, err)
	t.Cleanup(proxy.Close)
	return proxy.URL()
}

func (c *trips) count(trip *failpoint.Trip) failpoint.Fault {
	if trip.Side != c.side {
		return failpoint.None
	}
	if n, cut := c.n.Add(1), c.cut.Load(); n == cut || c.away && cut > 0 && n > cut {
		return failpoint.Cut
	}
	return failpoint.None
}
