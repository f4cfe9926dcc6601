package rediscache_test

import (
	"net"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

// TestTrouble: whatever Redis does, nothing is found that should not be, and the
// answers come back when it does.
func TestTrouble(t *testing.T) {
	pgtest.Long(t, "it waits for seconds")
	t.Parallel()
	for _, test := range []struct{ name, says string }{
		{"ends every connection", hangUp},
		{"does not speak the protocol", "HTTP/1.1 400 Bad Request\r\n\r\n"},
		{"stops in the middle of an answer", "$100\r\nshort"},
		{"wants a password", "-NOAUTH Authentication required.\r\n"},
		{"is loading its files", "-LOADING Redis is loading the dataset in memory\r\n"},
		{"answers what was not asked", "*1\r\n:7\r\n"},
		{"announces more bytes than there are", "$4611686018427387904\r\n"},
		{"announces more bytes than there is memory", "$20000000000\r\n"},
		{"announces a list that is as long", "*4611686018427387904\r\n"},
		{"announces lists in lists without end", strings.Repeat("*1\r\n", 1<<16)},
		{"never ends a line", "+" + strings.Repeat("x", 1<<16)},
		{"says a byte now and then", drip + "$5\r\n" + strings.Repeat("x", 1<<16)},
	} {
		t.Run("a Redis that "+test.name, func(t *testing.T) {
			t.Parallel()
			redis := newFake(t)
			w := newWorld(t, redis.url())
			record := w.kept(t, theKey(), "ch_1")
			redis.does(func([]string) string { return test.says })
			for range 10 {
				if _, found, keep := w.recall(t, theKey(), theRequest()); found {
					t.Error("an answer is found")
				} else {
					keep(record)
				}
			}
			await.True(t, "it is logged", func() bool { return w.said.count("redis") > 0 })
			redis.does(nil)
			w.wantFound(t, theKey(), record)
			begun, ended := w.said.count("redis"), strings.Count(w.said.String(), "works again\" part=redis")
			if begun-ended < 0 || begun-ended > 1 {
				t.Errorf("it is logged otherwise than at its begin and end:\n%s", w.said)
			}
		})
	}

	t.Run("a client that panics", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, newFake(t).url())
		record := w.kept(t, theKey(), "ch_1")
		w.cache.Break()
		_, found, keep := w.recall(t, theKey(), theRequest())
		if found {
			t.Error("an answer is found")
		}
		for range 10 {
			keep(record)
		}
		await.True(t, "it is logged", func() bool { _ = w.finds(t, theKey()); return w.said.count("redis") > 0 })
		w.wantFound(t, theKey(), record)
	})

	t.Run("a refusal that repeats what it refuses", func(t *testing.T) {
		t.Parallel()
		for said, says := range map[string]string{
			"-ERR unknown command ch_1, try AUTH hunter2\r\n": "refused with ERR",
			"-ch_1:hunter2\r\n": "refused",
			"-\r\n":             "refused",
		} {
			redis := newFake(t)
			redis.does(func([]string) string { return said })
			w := newWorld(t, redis.url())
			await.True(t, "it is logged", func() bool { return w.said.count("redis") > 0 })
			if log := w.said.String(); !strings.Contains(log, says) || strings.Contains(log, "ch_1") || strings.Contains(log, "hunter2") {
				t.Errorf("of %q it says too much or too little: %s", said, log)
			}
		}
	})

	t.Run("a Redis that does not answer at all", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		w := newWorld(t, redis.url())
		record := w.kept(t, theKey(), "ch_1")
		silence := make(chan struct{})
		redis.does(func([]string) string { <-silence; return hangUp })
		_, found, keep := w.recall(t, theKey(), theRequest())
		if found {
			t.Error("an answer is found")
		}
		for range 5000 { // more than there is room for
			keep(record)
			if w.finds(t, theKey()) {
				t.Fatal("an answer is found")
			}
		}
		redis.does(nil)
		close(silence)
		w.wantFound(t, theKey(), record)
	})

	t.Run("a Redis that is not there", func(t *testing.T) {
		t.Parallel()
		nobody, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, "redis://"+nobody.Addr().String())
		if err := nobody.Close(); err != nil {
			t.Fatal(err)
		}
		record := w.store(t, theKey(), theRequest(), theAnswer("ch_1"), inAnHour())
		await.True(t, "it is logged", func() bool { return w.said.count("redis") == 1 })
		_, found, keep := w.recall(t, theKey(), theRequest())
		keep(record)
		if found {
			t.Error("an answer is found")
		}
	})
}
