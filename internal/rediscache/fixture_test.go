package rediscache_test

import (
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/rediscache"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

func keyOf(value string) idempotency.Key {
	return idempotency.Key{Scope: "acme", Operation: "POST /v1/charges", Value: value}
}

func numbered(i int) idempotency.Key { return keyOf("k" + strconv.Itoa(i)) }

func recordOf(name string) idempotency.Record {
	return idempotency.Record{
		Answer: idempotency.Answer{
			StatusCode: http.StatusAccepted, ContentType: "application/json", Location: "/v1/charges/" + name,
			Body: []byte("{\"id\": \"" + name + "\"}\n\x00\xff"),
		},
		Fingerprint: []byte("fingerprint"),
		ExpiresAt:   time.Now().Add(time.Hour).Truncate(time.Second),
	}
}

// fixture is a database, a cache of its keys and the time.
type fixture struct {
	*rediscache.Cache

	redis *fake
	db    *postgres.DB
	api   *postgres.DB // the same database, as the cache reads it
	log   await.Log
	ahead atomic.Int64 // of the clock
	last  atomic.Value // what the last look-up found
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	redis := newFake(t)
	f := newFixtureOn(t, testdb.Open(t), redis.url())
	f.redis = redis
	return f
}

// newFixtureOn opens a cache that reads the database as the api's role.
func newFixtureOn(t *testing.T, db *postgres.DB, url string) *fixture {
	t.Helper()
	f := &fixture{db: db, api: testdb.As(t, db, postgres.RoleAPI)}
	var err error
	f.Cache, err = rediscache.OpenReadingOften(t.Context(), f.api, url, rediscache.Options{
		Longest: time.Hour,
		Log:     slog.New(slog.NewTextHandler(&f.log, nil)),
		Counted: func(found rediscache.Found) { f.last.Store(found) },
		Clock:   func() time.Time { return time.Now().Add(time.Duration(f.ahead.Load())) },
	})
	testdb.Must(t, err)
	t.Cleanup(f.Close)
	return f
}

func (f *fixture) exec(t *testing.T, sql string) {
	t.Helper()
	testdb.Exec(t, f.db.Pool(), sql)
}

// keep gives the cache a record until it is found.
func (f *fixture) keep(t *testing.T, key idempotency.Key, record idempotency.Record) idempotency.Record {
	t.Helper()
	await.True(t, "a kept answer is found", func() bool {
		cached := f.Find(t.Context(), key, record.Fingerprint)
		if !cached.Found && cached.Keep != nil {
			cached.Keep(record)
		}
		return cached.Found
	})
	return record
}

// wantFound waits for the answer: on a busy machine Redis may be late once.
func (f *fixture) wantFound(t *testing.T, key idempotency.Key, want idempotency.Record) {
	t.Helper()
	await.True(t, "the answer is found", func() bool {
		cached := f.Find(t.Context(), key, want.Fingerprint)
		if diff := cmp.Diff(want, cached.Record); cached.Found && diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
		return cached.Found
	})
}

func (f *fixture) wantNotFound(t *testing.T, key idempotency.Key, when string) {
	t.Helper()
	if got := f.Find(t.Context(), key, []byte("fingerprint")); got.Found || len(got.Record.Body) > 0 {
		t.Errorf("%s: %s is found", when, key.Value)
	}
}

// awaitOtherState runs change and waits until the cache knows that the database is in
// another state.
func (f *fixture) awaitOtherState(t *testing.T, change func()) {
	t.Helper()
	before := f.State()
	change()
	await.True(t, "the change is known", func() bool { now := f.State(); return now != "" && now != before })
}

// awaitLogged waits until the log says something for the nth time.
func (f *fixture) awaitLogged(t *testing.T, says string, n int) {
	t.Helper()
	await.True(t, says+" is logged", func() bool { return strings.Count(f.log.String(), says) == n })
	if log := f.log.String(); strings.Contains(log, "ch_") || strings.Contains(log, "hunter2") {
		t.Errorf("the log says too much: %s", log)
	}
}
