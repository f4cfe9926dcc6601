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
)

func keyOf(value string) idempotency.Key {
	return idempotency.Key{Scope: "acme", Operation: "POST /v1/charges", Value: value}
}

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
	db    *postgres.DB
	api   *postgres.DB // the same database, as the cache reads it
	cache *rediscache.Cache
	log   await.Log
	ahead atomic.Int64 // of the clock
}

func newFixture(t *testing.T, url string) *fixture {
	t.Helper()
	return newFixtureOn(t, testdb.Open(t), url)
}

// newFixtureOn opens a cache that reads the database as the api's role.
func newFixtureOn(t *testing.T, db *postgres.DB, url string) *fixture {
	t.Helper()
	f := &fixture{db: db, api: testdb.As(t, db, postgres.RoleAPI)}
	var err error
	f.cache, err = rediscache.OpenReadingOften(t.Context(), f.api, url, rediscache.Options{
		Log:   slog.New(slog.NewTextHandler(&f.log, nil)),
		Clock: func() time.Time { return time.Now().Add(time.Duration(f.ahead.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.cache.Close)
	return f
}

func (f *fixture) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := f.db.Pool().Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// keep gives the cache a record until it is found.
func (f *fixture) keep(t *testing.T, key idempotency.Key, record idempotency.Record) idempotency.Record {
	t.Helper()
	await.True(t, "a kept answer is found", func() bool {
		cached := f.cache.Find(t.Context(), key, record.Fingerprint)
		if !cached.Found && cached.Keep != nil {
			cached.Keep(record)
		}
		return cached.Found
	})
	return record
}

func (f *fixture) finds(t *testing.T, key idempotency.Key) bool {
	t.Helper()
	return f.cache.Find(t.Context(), key, []byte("fingerprint")).Found
}

// wantFound waits for the answer: on a busy machine Redis may be late once.
func (f *fixture) wantFound(t *testing.T, key idempotency.Key, want idempotency.Record) {
	t.Helper()
	await.True(t, "the answer is found", func() bool {
		cached := f.cache.Find(t.Context(), key, want.Fingerprint)
		if diff := cmp.Diff(want, cached.Record); cached.Found && diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
		return cached.Found
	})
}

func (f *fixture) wantNotFound(t *testing.T, key idempotency.Key, when string) {
	t.Helper()
	if f.finds(t, key) {
		t.Errorf("%s: %s is found", when, key.Value)
	}
}

// awaitOtherState runs change and waits until the cache knows that the database is in
// another state.
func (f *fixture) awaitOtherState(t *testing.T, change func()) {
	t.Helper()
	before := f.cache.State()
	change()
	await.True(t, "the change is known", func() bool { now := f.cache.State(); return now != "" && now != before })
}

// awaitLogged waits until a failure is logged, and returns the log.
func (f *fixture) awaitLogged(t *testing.T, says string) string {
	t.Helper()
	await.True(t, says+" is logged", func() bool { return strings.Contains(f.log.String(), says) })
	return f.log.String()
}

func numbered(i int) idempotency.Key { return keyOf("k" + strconv.Itoa(i)) }
