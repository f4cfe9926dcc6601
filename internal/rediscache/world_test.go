package rediscache_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/internal/rediscache"
)

func theKey() idempotency.Key {
	return idempotency.Key{Scope: "acme", Operation: "POST /v1/charges", Value: "order-4711"}
}

func theRequest() idempotency.Request { return idempotency.Request{Fingerprint: []byte("fingerprint")} }

func theAnswer(name string) idempotency.Answer {
	return idempotency.Answer{
		StatusCode: http.StatusAccepted, ContentType: "application/json", Location: "/v1/charges/" + name,
		Body: []byte("{\"id\": \"" + name + "\"}\n\x00\xff"),
	}
}

// world is a database, a cache of its keys and the time.
type world struct {
	db    *postgres.DB
	reads *reads // nil where the cache reads as it does in the api
	cache *rediscache.Cache
	said  *lines
	ahead atomic.Int64 // of the clock
}

func newWorld(tb testing.TB, url string) *world {
	tb.Helper()
	return newWorldOn(tb, pgtest.Open(tb), url)
}

func newWorldOn(tb testing.TB, db *postgres.DB, url string) *world {
	tb.Helper()
	return opened(tb, &world{db: db, reads: &reads{Querier: db}}, url)
}

func opened(tb testing.TB, w *world, url string) *world {
	tb.Helper()
	w.said = &lines{}
	options := rediscache.Options{
		Log:   slog.New(slog.NewTextHandler(w.said, nil)),
		Clock: func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) },
	}
	options.ReadEvery(20 * time.Millisecond)
	var err error
	if w.reads == nil {
		w.cache, err = rediscache.Open(tb.Context(), w.db, url, options)
	} else {
		w.cache, err = rediscache.OpenOn(tb.Context(), w.reads, url, options)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(w.cache.Close)
	return w
}

// store commits an answer and returns the record.
func (w *world) store(tb testing.TB, key idempotency.Key, request idempotency.Request, answer idempotency.Answer, expires time.Time) idempotency.Record {
	tb.Helper()
	b := &pgx.Batch{}
	idempotency.Claim(b, key, request, answer, expires)
	if err := w.db.Commit(tb.Context(), b); err != nil {
		tb.Fatal(err)
	}
	return idempotency.Record{Answer: answer, Fingerprint: request.Fingerprint, ExpiresAt: expires}
}

// kept stores an answer under a key and has it cached.
func (w *world) kept(tb testing.TB, key idempotency.Key, name string) idempotency.Record {
	tb.Helper()
	record := w.store(tb, key, theRequest(), theAnswer(name), inAnHour())
	w.keep(tb, key, record)
	return record
}

// keep hands the cache a record until it is found.
func (w *world) keep(tb testing.TB, key idempotency.Key, record idempotency.Record) {
	tb.Helper()
	await.True(tb, "a kept answer is found", func() bool {
		_, found, keep := w.recall(tb, key, idempotency.Request{Fingerprint: record.Fingerprint})
		if !found {
			keep(record)
		}
		return found
	})
}

func (w *world) recall(tb testing.TB, key idempotency.Key, request idempotency.Request) (idempotency.Record, bool, func(idempotency.Record)) {
	tb.Helper()
	return w.find(tb.Context(), key, request)
}

func (w *world) find(ctx context.Context, key idempotency.Key, request idempotency.Request) (idempotency.Record, bool, func(idempotency.Record)) {
	cached := w.cache.Find(ctx, key, request.Fingerprint)
	if cached.Keep == nil {
		cached.Keep = func(idempotency.Record) {}
	}
	return cached.Record, cached.Found, cached.Keep
}

func (w *world) finds(t *testing.T, key idempotency.Key) bool {
	t.Helper()
	_, found, _ := w.recall(t, key, theRequest())
	return found
}

// watched returns what tells whether the cache knows another state of the database than
// now. That an answer is not found tells less: Redis may have been late once.
func (w *world) watched() (changed func() bool) {
	before := w.cache.State()
	return func() bool {
		now := w.cache.State()
		return now != "" && now != before
	}
}

// wantFound waits for the answer: on a busy machine Redis may be late once.
func (w *world) wantFound(t *testing.T, key idempotency.Key, want idempotency.Record) {
	t.Helper()
	await.True(t, "the answer is found", func() bool {
		got, found, _ := w.recall(t, key, theRequest())
		if !found {
			return false
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
		return true
	})
}

func (w *world) exec(tb testing.TB, sql string) {
	tb.Helper()
	if _, err := w.db.Pool().Exec(tb.Context(), sql); err != nil {
		tb.Fatal(err)
	}
}

// reads is the database as the cache reads it. It can be out of reach.
type reads struct {
	postgres.Querier
	fails, hangs atomic.Bool
	ahead        atomic.Int64 // of the database's clock
}

func (r *reads) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if r.hangs.Load() {
		<-ctx.Done()
	}
	if r.fails.Load() {
		return noRow{}
	}
	return later{r.Querier.QueryRow(ctx, sql, args...), time.Duration(r.ahead.Load())}
}

// later is a row whose times are later than the database says.
type later struct {
	pgx.Row
	by time.Duration
}

func (r later) Scan(dest ...any) error {
	err := r.Row.Scan(dest...)
	for _, d := range dest {
		if at, ok := d.(*time.Time); ok {
			*at = at.Add(r.by)
		}
	}
	return err
}

type noRow struct{}

func (noRow) Scan(...any) error { return errors.New("out of reach") }

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// count is how often part was said to fail.
func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.text.Bytes(), []byte("without what fails\" part="+part+" "))
}

func inAnHour() time.Time { return time.Now().Add(time.Hour).Truncate(time.Second) }

func numbered(i int) idempotency.Key {
	key := theKey()
	key.Value = "k" + strconv.Itoa(i)
	return key
}
