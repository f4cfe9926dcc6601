package rediscache_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/rediscache"
)

// TestAddress: a REDIS_URL either can be used or is refused in a sentence that
// does not repeat it.
func TestAddress(t *testing.T) {
	t.Parallel()

	t.Run("it says who logs in and where", func(t *testing.T) {
		t.Parallel()
		for url, want := range map[string]string{
			"redis://app:pass%40word@HOST/3": "AUTH app pass@word|SELECT 3",
			"redis://:secret@HOST":           "AUTH secret|",
			"redis://HOST/0":                 "|",
			"redis://HOST/":                  "|",
		} {
			redis := newFake(t)
			logins := make(chan string, 100)
			redis.does(func(command []string) string {
				switch command[0] {
				case "AUTH", "SELECT":
					logins <- strings.Join(command, " ")
					return "+OK\r\n"
				}
				return ""
			})
			w := newWorld(t, strings.Replace(url, "HOST", redis.listener.Addr().String(), 1))
			w.kept(t, theKey(), "ch_1")
			for said := range strings.SplitSeq(want, "|") {
				if said != "" {
					if got := <-logins; got != said {
						t.Errorf("%s: it says %q, want %q", url, got, said)
					}
				}
			}
			if want == "|" && len(logins) > 0 {
				t.Errorf("%s: it says %q", url, <-logins)
			}
		}
	})

	t.Run("what is none is refused", func(t *testing.T) {
		t.Parallel()
		for _, url := range []string{
			"", "localhost:6379", "localhost", "http://localhost", "redis:", "redis://", "redis:///0", "redis://:6379",
			"redis://app:hunter2@localhost:port", "redis://app:hunter2@localhost:70000", "redis://app:hunter2@localhost/zero",
			"redis://app:hunter2@localhost/-1", "redis://app:hunter2@localhost/0?db=1", "redis://hunter2@localhost", "redis://app:hunter2@local host", "redis://app:hunter2%@localhost",
		} {
			refuses(t, url, false, "REDIS_URL")
		}
	})

	t.Run("so is one over a network in plain text", func(t *testing.T) {
		t.Parallel()
		for _, url := range []string{"redis://app:hunter2@192.0.2.7", "redis://app:hunter2@cache.example:6379/0", "redis://[2001:db8::7]"} {
			refuses(t, url, false, "without TLS")
		}
	})

	t.Run("unless the network is ours", func(t *testing.T) {
		t.Parallel()
		for url, plaintext := range map[string]bool{
			"redis://192.0.2.7": true, "rediss://192.0.2.7": false, "redis://localhost": false, "redis://127.0.0.2": false, "redis://[::1]:7": false,
		} {
			accepts(t, url, plaintext)
		}
	})

	t.Run("nothing is sent before TLS is agreed on", func(t *testing.T) {
		t.Parallel()
		redis := newFake(t)
		heard := make(chan []string, 1)
		redis.does(func(command []string) string { heard <- command; return hangUp })
		w := newWorld(t, strings.Replace(redis.url(), "redis://", "rediss://app:hunter2@", 1))
		await.True(t, "it is logged", func() bool { return w.said.count("redis") == 1 })
		if len(heard) > 0 {
			t.Errorf("it said %q", <-heard)
		}
	})
}

func refuses(t *testing.T, url string, plaintext bool, says string) {
	t.Helper()
	cache, err := open(t, url, plaintext)
	if err == nil {
		cache.Close()
		t.Errorf("%q is accepted", url)
		return
	}
	if !strings.HasPrefix(err.Error(), "REDIS_URL ") || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%q is refused with %q", url, err)
	}
}

func accepts(t *testing.T, url string, plaintext bool) {
	t.Helper()
	cache, err := open(t, url, plaintext)
	if err != nil {
		t.Errorf("%q: %v", url, err)
		return
	}
	cache.Close()
}

// open opens a cache that has no time to reach anything.
func open(t *testing.T, url string, plaintext bool) (*rediscache.Cache, error) {
	t.Helper()
	db := &reads{}
	db.fails.Store(true)
	return rediscache.OpenOn(t.Context(), db, url, rediscache.Options{
		AllowPlaintext: plaintext, Log: slog.New(slog.DiscardHandler), Clock: time.Now,
	})
}
