package rediscache_test

import (
	"log/slog"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/rediscache"
	"github.com/payonce/payonce/internal/testdb"
)

// TestOpen: a REDIS_URL either can be used or is refused in a sentence that does not
// repeat it.
func TestOpen(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	for says, urls := range map[string][]string{
		"REDIS_URL ": {
			"", "localhost:6379", "localhost", "http://localhost", "redis:", "redis://", "redis:///0", "redis://:6379",
			"redis://app:hunter2@localhost:port", "redis://app:hunter2@localhost:70000", "redis://app:hunter2@localhost/zero",
			"redis://app:hunter2@localhost/-1", "redis://app:hunter2@localhost/0?db=1", "redis://hunter2@localhost",
			"redis://app:hunter2@local host", "redis://app:hunter2%@localhost",
		},
		"without TLS":      {"redis://app:hunter2@192.0.2.7", "redis://app:hunter2@cache.example:6379/0", "redis://[2001:db8::7]"},
		"":                 {"rediss://192.0.2.7", "redis://localhost", "redis://127.0.0.2", "redis://[::1]:7", "redis://:hunter2@localhost/3"},
		"allowed, without": {"redis://192.0.2.7"},
	} {
		for _, url := range urls {
			cache, err := rediscache.Open(t.Context(), db, url, rediscache.Options{
				AllowPlaintext: strings.HasPrefix(says, "allowed"), Log: slog.New(slog.DiscardHandler), Clock: time.Now,
			})
			if err == nil {
				cache.Close()
			}
			if accepted := says == "" || strings.HasPrefix(says, "allowed"); accepted != (err == nil) {
				t.Errorf("%q: %v", url, err)
			}
			if err != nil && (!strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2")) {
				t.Errorf("%q is refused with %q", url, err)
			}
		}
	}
}

func TestOpen_logsIn(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	for prefix, want := range map[string]string{
		"redis://app:pass%40word@HOST/3": "AUTH app pass@word,SELECT 3",
		"redis://:secret@HOST":           "AUTH secret",
		"redis://HOST/0":                 "GETRANGE",
		"rediss://app:hunter2@HOST":      "", // nothing is sent before TLS is agreed on
	} {
		redis := newFake(t)
		commands := make(chan string, 1000)
		redis.answers(func(command []string) string {
			if command[0] == "GETRANGE" {
				command = command[:1]
			}
			commands <- strings.Join(command, " ")
			return map[string]string{"AUTH": "+OK\r\n", "SELECT": "+OK\r\n"}[command[0]]
		})
		f := newFixtureOn(t, db, strings.Replace(prefix, "HOST", redis.listener.Addr().String(), 1))
		await.True(t, "the cache knows the state", func() bool { return f.State() != "" })
		f.wantNotFound(t, keyOf("key"), prefix)
		if want == "" {
			f.awaitLogged(t, "without what fails", 1)
			if len(commands) > 0 {
				t.Errorf("%s: %s was sent", prefix, <-commands)
			}
			continue
		}
		for command := range strings.SplitSeq(want, ",") {
			if got := await.Receive(t, "a command", commands); got != command {
				t.Errorf("%s: %s was sent, want %s", prefix, got, command)
			}
		}
	}
}

// TestCache_whateverRedisDoes: whatever Redis does, nothing is found that should not be, and the
// answers come back when it does.
func TestCache_whateverRedisDoes(t *testing.T) {
	t.Parallel()
	f, silence := newFixture(t), make(chan struct{})
	record := f.keep(t, keyOf("key"), recordOf("ch_1"))
	for i, test := range []struct{ name, says string }{
		{"ends every connection", hangUp},
		{"does not answer", ""},
		{"does not speak the protocol", "HTTP/1.1 400 Bad Request\r\n\r\n"},
		{"stops in the middle of an answer", "$100\r\nshort"},
		{"wants a password and repeats one", "-NOAUTH ch_1 hunter2\r\n"},
		{"says what is no code", "-ch_1:hunter2\r\n"},
		{"says nothing", "-\r\n"},
		{"answers what was not asked", "*1\r\n:7\r\n"},
		{"announces more bytes than there are", "$4611686018427387904\r\n"},
		{"announces more bytes than there is memory", "$20000000000\r\n"},
		{"announces a value that is a little too long", "$" + strconv.Itoa(rediscache.Largest+1) + "\r\n"},
		{"sends a second answer that was not asked for", "$0\r\n\r\n$4611686018427387904\r\n"},
		{"announces no number", "$\r\n"},
		{"announces a list that is as long", "*4611686018427387904\r\n"},
		{"never ends a line", "+" + strings.Repeat("x", 1<<16)},
	} {
		t.Run("a Redis that "+test.name, func(t *testing.T) {
			f.redis.answers(func([]string) string {
				if test.says == "" {
					<-silence
					return hangUp
				}
				return test.says
			})
			f.ahead.Add(int64(time.Minute)) // a failure is logged once a minute
			await.True(t, "the failure is logged", func() bool {
				cached := f.Find(t.Context(), keyOf("key"), record.Fingerprint)
				if cached.Keep != nil {
					cached.Keep(record)
				}
				if cached.Found {
					t.Fatal("an answer is found")
				}
				return strings.Count(f.log.String(), "without what fails") > i
			})
			f.awaitLogged(t, "without what fails", i+1)
			if test.says == "" {
				close(silence)
			}
			f.redis.answers(nil)
			f.wantFound(t, keyOf("key"), record)
		})
	}
}

// TestServer: a real Redis keeps and finds answers, is stopped, flushed and killed.
func TestServer(t *testing.T) {
	testdb.Long(t, "it starts a server")
	t.Parallel()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("not run: there is no redis-server in PATH")
	}
	free, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	testdb.Must(t, err)
	_, port, _ := net.SplitHostPort(free.Addr().String())
	_ = free.Close()
	server := exec.CommandContext(t.Context(), path, "--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "")
	testdb.Must(t, server.Start())
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	f := newFixtureOn(t, testdb.Open(t), "redis://127.0.0.1:"+port)
	record := f.keep(t, keyOf("key"), recordOf("ch_1"))
	f.wantFound(t, keyOf("key"), record)

	signal := func(s syscall.Signal) {
		t.Helper()
		testdb.Must(t, server.Process.Signal(s))
	}
	signal(syscall.SIGSTOP)
	f.wantNotFound(t, keyOf("key"), "while Redis is stopped")
	signal(syscall.SIGCONT)
	f.wantFound(t, keyOf("key"), record)
	if out, err := exec.CommandContext(t.Context(), "redis-cli", "-p", port, "FLUSHALL").CombinedOutput(); err != nil {
		t.Logf("not flushed: %v: %s", err, out)
	} else {
		f.wantNotFound(t, keyOf("key"), "after a flush")
		f.keep(t, keyOf("key"), record)
	}
	signal(syscall.SIGKILL)
	_ = server.Wait()
	f.wantNotFound(t, keyOf("key"), "after Redis was killed")
	f.awaitLogged(t, "without what fails", 1)
}
