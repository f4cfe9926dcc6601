package rediscache_test

import (
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/await"
)

func TestFind(t *testing.T) {
	t.Parallel()

	t.Run("an answer that was kept is found byte for byte", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, newFake(t).url())
		record := w.kept(t, theKey(), "ch_1")
		w.wantFound(t, theKey(), record)
	})

	t.Run("every field of an answer is kept", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, newFake(t).url())
		record := w.kept(t, theKey(), "ch_1")
		w.wantFound(t, theKey(), record)
		if missing := zeroFields(record.Answer); len(missing) > 0 {
			t.Errorf("this test says nothing of %v", missing)
		}
	})

	t.Run("another process finds it too", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		w := newWorld(t, redis.url())
		record := w.kept(t, theKey(), "ch_1")
		other := newWorldOn(t, w.db, redis.url())
		await.True(t, "the other finds it", func() bool { return other.finds(t, theKey()) })
		other.wantFound(t, theKey(), record)
	})

	t.Run("another request under the key is left to the database", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, newFake(t).url())
		w.kept(t, theKey(), "ch_1")
		for _, fingerprint := range []string{"another", "fingerprint ", "fingerprin", ""} {
			got := w.cache.Find(t.Context(), theKey(), []byte(fingerprint))
			if got.Found || len(got.Record.Body) > 0 {
				t.Errorf("%q finds %+v", fingerprint, got)
			}
		}
	})

	t.Run("a key in another place is another key", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, newFake(t).url())
		w.kept(t, theKey(), "ch_1")
		scope, operation, value, shifted := theKey(), theKey(), theKey(), theKey()
		scope.Scope, operation.Operation, value.Value = "globex", "POST /v1/charges/{id}/refunds", "Order-4711"
		shifted.Scope, shifted.Operation = "acmeP", "OST /v1/charges"
		for _, key := range []idempotency.Key{scope, operation, value, shifted} {
			if w.finds(t, key) {
				t.Errorf("%+v is found", key)
			}
		}
	})

	t.Run("an expired answer is not found, though Redis keeps it", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		w := newWorld(t, redis.url())
		living := w.store(t, numbered(1), theRequest(), theAnswer("ch_1"), inAnHour().Add(24*time.Hour))
		w.keep(t, numbered(1), living)
		w.kept(t, theKey(), "ch_2")
		w.reads.ahead.Store(int64(2 * time.Hour))
		await.True(t, "the cache knows the database's time", func() bool { return !w.finds(t, theKey()) })
		w.wantFound(t, numbered(1), living)
		if w.finds(t, theKey()) || len(redis.all()) != 2 {
			t.Errorf("it is found among %d entries", len(redis.all()))
		}
	})

	t.Run("what was never written is answered by the database", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		w := newWorld(t, redis.url())
		w.kept(t, numbered(1), "ch_1") // all is well
		redis.does(func(command []string) string {
			if command[0] == "SET" {
				return "-OOM not allowed, with args beginning with: 'SET' '" + command[1] + "' 'ch_2'\r\n"
			}
			return ""
		})
		record := w.store(t, theKey(), theRequest(), theAnswer("ch_2"), inAnHour())
		_, _, keep := w.recall(t, theKey(), theRequest())
		keep(record)
		await.True(t, "the refusal is logged", func() bool { return w.said.count("writes") == 1 })
		if said := w.said.String(); strings.Contains(said, "ch_2") || !strings.Contains(said, "OOM") {
			t.Errorf("it says too much or too little: %s", said)
		}
		if w.finds(t, theKey()) {
			t.Error("the refused answer is found")
		}
		await.True(t, "the other is found", func() bool { return w.finds(t, numbered(1)) })
		redis.does(nil)
		stored, err := idempotency.ReadKey(t.Context(), w.db, theKey())
		if err != nil || !stored.Found {
			t.Fatal(stored.Found, err)
		}
		w.keep(t, theKey(), stored.Record)
		w.wantFound(t, theKey(), record)
		await.True(t, "the end is logged", func() bool { return strings.Contains(w.said.String(), "works again\" part=writes") })
	})

	t.Run("what is too large is left to the database", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		w := newWorld(t, redis.url())
		w.kept(t, numbered(1), "ch_1") // all is well
		large := theAnswer("ch_2")
		large.Body = make([]byte, 1<<20)
		record := w.store(t, theKey(), theRequest(), large, inAnHour())
		_, _, keep := w.recall(t, theKey(), theRequest())
		keep(record)
		w.kept(t, numbered(2), "ch_3") // later than the large one
		if w.finds(t, theKey()) || len(redis.all()) != 2 {
			t.Errorf("it is found among %d entries", len(redis.all()))
		}
	})
}

func TestEntriesDoNotOutliveTheirKeys(t *testing.T) {
	t.Parallel()
	redis := newFake(t)
	w := newWorld(t, redis.url())
	for i, test := range []struct {
		name  string
		keeps time.Duration
		least time.Duration
		most  time.Duration
	}{
		{"as long as the key", 10 * time.Minute, 9 * time.Minute, 10 * time.Minute},
		{"an hour at most", 168 * time.Hour, time.Hour, time.Hour},
	} {
		expires := time.Now().Add(test.keeps).Truncate(time.Second)
		w.keep(t, numbered(i), w.store(t, numbered(i), theRequest(), theAnswer("ch_1"), expires))
		if life := redis.latest(); life < test.least || life > test.most {
			t.Errorf("%s: the entry lives %v", test.name, life)
		}
	}
}

func TestRedisIsShownNoKey(t *testing.T) {
	t.Parallel()
	redis := newFake(t)
	w := newWorld(t, redis.url())
	w.kept(t, theKey(), "ch_1")
	name, value := redis.only(t)
	for _, secret := range []string{theKey().Scope, theKey().Operation, theKey().Value} {
		if strings.Contains(name, secret) || strings.Contains(value, secret) {
			t.Errorf("%q is in the entry %q", secret, name)
		}
	}
	// The same key has another name in another database.
	other := newWorld(t, redis.url())
	other.kept(t, theKey(), "ch_2")
	if len(redis.all()) != 2 {
		t.Errorf("there are %d entries, want two", len(redis.all()))
	}
}
