package rediscache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// TestUnderLoad: sixteen clients replay, reuse and look for keys while a real
// Redis is stopped, killed, flushed, corrupted and put back. Each outcome is the
// one that the database alone would give.
func TestUnderLoad(t *testing.T) {
	pgtest.Long(t, "it waits for seconds")
	t.Parallel()
	redis := startServer(t)
	w := newWorld(t, redis.url())
	const keys, clients, enough = 40, 16, 200
	for i := range keys {
		w.store(t, numbered(i), fingerprint(i), theAnswer("ch_"+strconv.Itoa(i)), inAnHour())
	}

	var hits, misses atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	for range clients {
		load.Go(func() {
			for ctx.Err() == nil {
				i := rand.N(keys + 5) // the last five are free
				asked := i
				if rand.N(5) == 0 {
					asked = rand.N(keys) // perhaps another request
				}
				replayed, err := w.outcome(ctx, i, asked, keys)
				switch {
				case ctx.Err() != nil:
				case err != nil:
					t.Error(err)
					return
				case replayed:
					hits.Add(1)
				default:
					misses.Add(1)
				}
			}
		})
	}
	answers := func(what string) {
		t.Helper()
		before := hits.Load()
		await.Progress(t, "Redis answers "+what, func() (string, bool) {
			now := hits.Load()
			return strconv.FormatInt(now, 10), t.Failed() || now > before+enough
		})
	}
	database := func(what string) {
		t.Helper()
		before := misses.Load()
		await.Progress(t, "the database answers "+what, func() (string, bool) {
			now := misses.Load()
			return strconv.FormatInt(now, 10), t.Failed() || now > before+enough
		})
	}

	answers("at first")
	redis.must(t, "SAVE")
	old, err := os.ReadFile(redis.dump())
	if err != nil {
		t.Fatal(err)
	}

	redis.signal(t, syscall.SIGSTOP)
	database("while Redis is stopped")
	redis.signal(t, syscall.SIGCONT)
	answers("when it goes on")

	redis.must(t, "FLUSHALL")
	answers("after a flush")

	for _, name := range redis.entries(t) {
		redis.must(t, "PERSIST", name)
	}
	answers("with entries that live for ever")

	damage(t, redis)
	answers("after every entry was damaged")

	swap(t, redis)
	answers("after entries changed places")

	redis.kill()
	database("while Redis is down")
	if err := os.WriteFile(redis.dump(), old, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := redis.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	answers("from an old dump")

	stop()
	load.Wait()
	w.exec(t, `truncate idempotency_keys`)
	await.True(t, "nothing of before is found", func() bool {
		_, found, _ := w.recall(t, numbered(0), fingerprint(0))
		return !found
	})
	for i := range keys {
		if _, found, _ := w.recall(t, numbered(i), fingerprint(i)); found {
			t.Errorf("key %d is found, and the database does not have it", i)
		}
	}
	t.Logf("%d answers of Redis, %d of the database", hits.Load(), misses.Load())
}

// outcome asks for key i with the request of another key, as a use case does,
// and returns whether the cache had the answer. An error is a wrong outcome.
func (w *world) outcome(ctx context.Context, i, asked, keys int) (hit bool, err error) {
	request := fingerprint(asked)
	record, hit, keep := w.find(ctx, numbered(i), request)
	if !hit {
		state, err := idempotency.ReadKey(ctx, w.db, numbered(i))
		if err != nil {
			return false, err
		}
		record = state.Record
		if !state.Found {
			if i < keys {
				return false, fmt.Errorf("key %d is not there", i)
			}
			return false, nil
		}
		keep(record)
	}
	answer, err := record.Replay(request)
	switch {
	case i >= keys:
		return false, fmt.Errorf("key %d is free and has the answer %+v", i, record)
	case i != asked && errors.Is(err, idempotency.ErrReused) && !hit:
		return false, nil
	case i != asked || err != nil:
		return false, fmt.Errorf("key %d, request %d, cached %v: %+v: %w", i, asked, hit, answer, err)
	}
	if diff := cmp.Diff(theAnswer("ch_"+strconv.Itoa(i)), answer); diff != "" {
		return false, fmt.Errorf("key %d, cached %v: answer (-want +got):\n%s", i, hit, diff)
	}
	return hit, nil
}

// damage changes one bit in every entry.
func damage(t *testing.T, redis *server) {
	t.Helper()
	for _, name := range redis.entries(t) {
		value, _ := redis.must(t, "GET", name).([]byte)
		if len(value) == 0 {
			continue
		}
		value[rand.N(len(value))] ^= 1 << rand.N(8)
		redis.must(t, "SET", name, value)
	}
}

// swap gives every entry the value of the next.
func swap(t *testing.T, redis *server) {
	t.Helper()
	names := redis.entries(t)
	var last []byte
	for i := range len(names) + 1 {
		value, _ := redis.must(t, "GET", names[i%len(names)]).([]byte)
		if i > 0 && !bytes.Equal(last, value) {
			redis.must(t, "SET", names[i%len(names)], last)
		}
		last = value
	}
}

func fingerprint(i int) idempotency.Request {
	return idempotency.Request{Fingerprint: []byte("fingerprint " + strconv.Itoa(i))}
}
