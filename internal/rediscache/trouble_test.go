package rediscache_test

import (
	"net"
	"strings"
	"testing"
)

// TestTrouble: whatever Redis does, nothing is found that should not be, and the
// answers come back when it does.
func TestTrouble(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, says string }{
		{"ends every connection", hangUp},
		{"does not speak the protocol", "HTTP/1.1 400 Bad Request\r\n\r\n"},
		{"stops in the middle of an answer", "$100\r\nshort"},
		{"wants a password", "-NOAUTH Authentication required.\r\n"},
		{"is loading its files", "-LOADING Redis is loading the dataset in memory\r\n"},
		{"answers what was not asked", "*1\r\n:7\r\n"},
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
			eventually(t, "it is logged", func() bool { return w.said.count("redis") > 0 })
			redis.does(nil)
			w.wantFound(t, theKey(), record)
			begun, ended := w.said.count("redis"), strings.Count(w.said.String(), "works again\" part=redis")
			if begun-ended < 0 || begun-ended > 1 {
				t.Errorf("it is logged otherwise than at its begin and end:\n%s", w.said)
			}
		})
	}

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
		eventually(t, "it is logged", func() bool { return w.said.count("redis") == 1 })
		_, found, keep := w.recall(t, theKey(), theRequest())
		keep(record)
		if found {
			t.Error("an answer is found")
		}
	})
}
