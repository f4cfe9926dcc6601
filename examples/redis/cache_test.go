package rediscache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testrun"

	rediscache "github.com/payonce/payonce/examples/redis"
)

func TestMain(m *testing.M) {
	*rediscache.Patience = time.Second // a busy machine is not a Redis that fails
	testrun.Main(m)
}

// shop receives orders with a cache.
type shop struct {
	db      groupcommit.DB
	options idempotency.Options

	cache  *rediscache.Cache
	found  atomic.Value // what the last look-up found
	pool   *pgxpool.Pool
	server *exec.Cmd // Redis
	redis  redis.Conn
}

func open(tb testing.TB) *shop {
	tb.Helper()
	s := &shop{}
	s.found.Store(rediscache.Miss)
	database := testrun.Server(tb, local.Options{Fsync: true, InMemory: true})
	var err error
	s.pool, err = pgxpool.New(tb.Context(), database.URL("postgres"))
	testrun.Must(tb, err)
	tb.Cleanup(s.pool.Close)
	_, err = s.pool.Exec(tb.Context(), idempotency.Schema()+`create table orders (key text not null)`)
	testrun.Must(tb, err)
	url := s.startRedis(tb)
	s.cache = rediscache.New(url, []byte("32 random bytes of a real program"), time.Hour, func(f rediscache.Found) { s.found.Store(f) })
	tb.Cleanup(func() { testrun.Must(tb, s.cache.Close()) })
	s.db = groupcommit.New(s.pool, groupcommit.Options{Writes: groupcommit.NewStatements(idempotency.Writes()...)})
	s.options.Retention = time.Hour
	s.options.Read = s.cache.Read(idempotency.ReadKey)
	return s
}

// startRedis starts a server that ends with the test, and returns its URL.
func (s *shop) startRedis(tb testing.TB) (url string) {
	tb.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		tb.Skip("not run: there is no redis-server in PATH")
	}
	free, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	testrun.Must(tb, err)
	_, port, _ := net.SplitHostPort(free.Addr().String())
	testrun.Must(tb, free.Close())
	s.server = exec.CommandContext(tb.Context(), path, "--port", port, "--bind", "127.0.0.1", "--dir", tb.TempDir(), "--save", "")
	testrun.Must(tb, s.server.Start())
	tb.Cleanup(func() {
		_ = s.server.Process.Kill()
		_ = s.server.Wait() // it was killed
	})
	url = "redis://127.0.0.1:" + port
	testrun.True(tb, "redis-server answers", func() bool {
		s.redis, err = redis.DialURLContext(tb.Context(), url)
		return err == nil
	})
	tb.Cleanup(func() { _ = s.redis.Close() })
	return url
}

func (s *shop) do(tb testing.TB, command string, args ...any) any {
	tb.Helper()
	reply, err := s.redis.Do(command, args...)
	testrun.Must(tb, err)
	return reply
}

// order receives an order under a key.
func (s *shop) order(ctx context.Context, key, item string) (idempotency.Result, error) {
	request := idempotency.Request{Fingerprint: idempotency.Fingerprint([]byte(item)), Canonical: fmt.Appendf(nil, `{"item":%q}`, item)}
	return idempotency.Receive(ctx, s.db, idempotency.Key{Scope: "acme", Operation: "order.v1", Value: key}, request, s.options,
		func(_ context.Context, b *pgx.Batch, _ time.Time) (idempotency.Answer, error) {
			b.Queue(`insert into orders values ($1)`, key)
			return idempotency.Answer{StatusCode: http.StatusCreated, Body: []byte(`{"order":"` + key + `"}`)}, nil
		})
}

// wantReplay orders once more and compares the answer with the first one.
func (s *shop) wantReplay(t *testing.T, first idempotency.Result, found rediscache.Found, uses int64) {
	t.Helper()
	before := s.pool.Stat().AcquireCount()
	got, err := s.order(t.Context(), "k1", "lamp")
	want := first
	want.Replayed = true
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if used := s.pool.Stat().AcquireCount() - before; s.found.Load() != found || used != uses {
		t.Errorf("found %q, and PostgreSQL was asked %d times, want %q and %d", s.found.Load(), used, found, uses)
	}
}

// Whatever Redis does, the answer is the first one, and the work was done once.
func TestCache_answersReplays(t *testing.T) {
	t.Parallel()
	s := open(t)
	first, err := s.order(t.Context(), "k1", "lamp")
	testrun.Must(t, err)
	s.wantReplay(t, first, rediscache.Miss, 1)
	s.wantReplay(t, first, rediscache.Hit, 0)
	if _, err := s.order(t.Context(), "k1", "desk"); !errors.Is(err, idempotency.ErrReused) {
		t.Errorf("another order under the key: %v", err)
	}

	names, err := redis.Strings(s.do(t, "KEYS", "*"), nil)
	if err != nil || len(names) != 1 {
		t.Fatalf("Redis has %q, %v", names, err)
	}
	value, err := redis.Bytes(s.do(t, "GET", names[0]), nil)
	testrun.Must(t, err)
	if bytes.Contains(value, []byte("order")) || bytes.Contains(value, []byte("lamp")) {
		t.Errorf("Redis can read %q", value)
	}
	forged := bytes.Clone(value)
	forged[len(forged)-1] ^= 1
	s.do(t, "SET", names[0], forged)
	s.wantReplay(t, first, rediscache.Failed, 1) // and kept once more
	s.wantReplay(t, first, rediscache.Hit, 0)

	testrun.Must(t, s.server.Process.Signal(syscall.SIGSTOP))
	s.wantReplay(t, first, rediscache.Failed, 1)
	testrun.Must(t, s.server.Process.Signal(syscall.SIGCONT))
	testrun.True(t, "Redis is asked again", func() bool {
		_, err := s.order(t.Context(), "k1", "lamp")
		return err == nil && s.found.Load() == rediscache.Hit
	})
	s.wantReplay(t, first, rediscache.Hit, 0)
	s.do(t, "FLUSHALL")
	s.wantReplay(t, first, rediscache.Miss, 1)
	testrun.Must(t, s.server.Process.Kill())
	s.wantReplay(t, first, rediscache.Failed, 1)

	var orders int
	testrun.Must(t, s.pool.QueryRow(t.Context(), `select count(*) from orders`).Scan(&orders))
	if orders != 1 {
		t.Errorf("%d orders", orders)
	}
}

// An entry that Redis keeps for too long, or moves to another key, is not an answer.
func TestCache_refusesEntries(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.options.Retention = 3 * time.Second
	for range 2 {
		_, err := s.order(t.Context(), "k1", "lamp")
		testrun.Must(t, err)
	}
	one, err := redis.String(s.do(t, "RANDOMKEY"), nil)
	testrun.Must(t, err)
	s.do(t, "PERSIST", one)
	s.options.Retention = time.Hour
	for range 2 {
		_, err = s.order(t.Context(), "k2", "lamp")
		testrun.Must(t, err)
	}
	both, err := redis.Strings(s.do(t, "KEYS", "*"), nil)
	testrun.Must(t, err)
	for _, name := range both {
		if name != one {
			s.do(t, "COPY", one, name, "REPLACE")
		}
	}
	got, err := s.order(t.Context(), "k2", "lamp")
	if err != nil || string(got.Body) != `{"order":"k2"}` || s.found.Load() != rediscache.Failed {
		t.Errorf("another key's entry is answered with %s, %v, found %q", got.Body, err, s.found.Load())
	}
	time.Sleep(3 * time.Second)
	if _, err := s.order(t.Context(), "k1", "lamp"); !errors.Is(err, idempotency.ErrExpired) || s.found.Load() != rediscache.Miss {
		t.Errorf("an expired entry: %v, found %q", err, s.found.Load())
	}
}
