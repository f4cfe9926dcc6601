package rediscache_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gomodule/redigo/redis"

	"github.com/payonce/payonce/internal/await"
)

// server is a real Redis.
type server struct {
	folder string
	port   int

	leash io.Closer // when it is closed, also by our death, the server is killed
	shell *exec.Cmd
	pid   int
}

// startServer starts the redis-server of the machine, or skips the test.
func startServer(tb testing.TB) *server {
	tb.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		tb.Skip("not run: there is no redis-server in PATH")
	}
	s := &server{folder: tb.TempDir()}
	// Below the ports that systems give to clients, so that the server finds its
	// own free when it comes back.
	for try := 0; ; try++ {
		s.port = 20000 + rand.N(10000)
		err := s.start(tb.Context())
		if err == nil {
			break
		}
		if try == 5 {
			tb.Fatal(err)
		}
	}
	tb.Cleanup(s.kill)
	return s
}

func (s *server) url() string { return "redis://127.0.0.1:" + strconv.Itoa(s.port) }

func (s *server) dump() string { return filepath.Join(s.folder, "dump.rdb") }

// start starts the server with what its dump holds, and waits for it.
func (s *server) start(ctx context.Context) error {
	const script = `"$@" >/dev/null 2>&1 & echo $!; read -r _; kill -9 $!; wait`
	s.shell = exec.Command("sh", "-c", script, "sh", "redis-server", //nolint:noctx // it ends with its leash
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.folder, "--save", "")
	leash, err := s.shell.StdinPipe()
	if err != nil {
		return err
	}
	out, err := s.shell.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.shell.Start(); err != nil {
		return err
	}
	s.leash = leash
	said, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		s.pid, err = strconv.Atoi(strings.TrimSpace(said))
	}
	if err == nil {
		err = s.awaitMine(ctx)
	}
	if err != nil {
		s.kill()
	}
	return err
}

// awaitMine waits until this very server answers: another one may have the port.
func (s *server) awaitMine(ctx context.Context) error {
	var last error
	answers := await.Within(await.Stall, func() bool {
		var info string
		info, last = redis.String(s.command("INFO", "server"))
		return ctx.Err() != nil || strings.Contains(info, "process_id:"+strconv.Itoa(s.pid)+"\r\n") || s.ended()
	})
	if !answers || ctx.Err() != nil || s.ended() {
		return fmt.Errorf("start redis-server on port %d: %w", s.port, cmp.Or(ctx.Err(), last, errEnded))
	}
	return nil
}

var errEnded = errors.New("it ended at once")

// ended reports whether the server has ended: another program has its port.
func (s *server) ended() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid))
	return runtime.GOOS == "linux" && (err != nil || strings.Contains(string(stat), ") Z "))
}

// kill ends the server with SIGKILL, stopped or not.
func (s *server) kill() {
	_ = s.leash.Close()
	_ = s.shell.Wait() // says that it was killed
}

func (s *server) signal(tb testing.TB, signal syscall.Signal) {
	tb.Helper()
	if err := syscall.Kill(s.pid, signal); err != nil {
		tb.Error(err)
	}
}

func (s *server) command(name string, args ...any) (any, error) {
	conn, err := redis.Dial("tcp", "127.0.0.1:"+strconv.Itoa(s.port), redis.DialConnectTimeout(await.Stall), redis.DialReadTimeout(await.Stall))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return conn.Do(name, args...)
}

func (s *server) must(tb testing.TB, name string, args ...any) any {
	tb.Helper()
	reply, err := s.command(name, args...)
	if err != nil {
		tb.Errorf("%s: %v", name, err)
	}
	return reply
}

func (s *server) entries(tb testing.TB) []string {
	tb.Helper()
	names, err := redis.Strings(s.must(tb, "KEYS", "*"), nil)
	if err != nil {
		tb.Error(err)
	}
	return names
}
