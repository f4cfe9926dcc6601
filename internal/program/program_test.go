package program_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/testdb"
)

const patience = time.Minute // bounds every wait for a condition

// logger is a program's, and what it has logged.
func logger() (*slog.Logger, *await.Log) {
	lines := &await.Log{}
	return program.Logger(lines, "test", nil), lines
}

func TestMain_returnsTheExitCode(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		err  error
		code int
		log  string
	}{
		{"a program that ends is a success", nil, 0, ""},
		{"a program that was stopped is a success", fmt.Errorf("wait: %w", context.Canceled), 0, ""},
		{"a program that cannot run says so in one line", errors.New("HTTP_ADDR is odd: set it"), 1, "HTTP_ADDR is odd: set it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			lines := &await.Log{}
			code := program.Main(nil, io.Discard, lines, "sample", func(context.Context, *slog.Logger, map[string]string) error { return test.err })
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if test.log == "" {
				if lines.String() != "" {
					t.Errorf("logged: %s", lines)
				}
				return
			}
			var line struct{ Level, Msg, Program string }
			if err := json.Unmarshal([]byte(lines.String()), &line); err != nil {
				t.Fatalf("not one JSON line: %v: %s", err, lines)
			}
			if line.Level != "ERROR" || line.Msg != test.log || line.Program != "sample" {
				t.Errorf("logged: %s", lines)
			}
		})
	}
	t.Run("a signal stops it", func(t *testing.T) {
		t.Parallel()
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			code := program.Main(nil, io.Discard, io.Discard, "sample", func(ctx context.Context, _ *slog.Logger, _ map[string]string) error {
				if err := syscall.Kill(os.Getpid(), sig); err != nil {
					return err
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(patience):
					return errors.New("the signal did not stop it")
				}
			})
			if code != 0 {
				t.Errorf("exit code %d after %s", code, sig)
			}
		}
	})
}

// served is a server that serves until stop. end waits for its end, as the test's end does.
type served struct {
	addr, url string
	log       *await.Log
	stop, end func()
}

func serve(t *testing.T, drain time.Duration, server *http.Server) *served {
	t.Helper()
	log, lines := logger()
	ctx, stop := context.WithCancel(t.Context())
	listener, err := program.Listen(ctx, "HTTP_ADDR", "127.0.0.1:0")
	testdb.Must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- program.ServeWithin(ctx, log, listener, server, drain) }()
	end := sync.OnceFunc(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(end)
	addr := listener.Addr().String()
	return &served{addr, "http://" + addr, lines, stop, end}
}

// handling is a server with a handler.
func handling(handler http.HandlerFunc) *http.Server {
	return &http.Server{Handler: handler, ReadHeaderTimeout: patience}
}

func (s *served) get(ctx context.Context) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func TestServe(t *testing.T) {
	t.Parallel()
	t.Run("a request in flight is finished, and no other begins", func(t *testing.T) {
		t.Parallel()
		begun, release := make(chan struct{}), make(chan struct{})
		s := serve(t, patience, handling(func(w http.ResponseWriter, _ *http.Request) {
			close(begun)
			<-release
			_, _ = io.WriteString(w, "done")
		}))
		answers := make(chan string, 1)
		go func() {
			body, err := s.get(t.Context())
			if err != nil {
				t.Error(err)
			}
			answers <- body
		}()
		<-begun
		s.stop()
		refused(t, s)
		close(release)
		if got := <-answers; got != "done" {
			t.Errorf("the request in flight was answered %q", got)
		}
		s.end()
	})
	t.Run("a request that does not end in time is cut, which is no failure", func(t *testing.T) {
		t.Parallel()
		begun := make(chan struct{})
		s := serve(t, 50*time.Millisecond, handling(func(_ http.ResponseWriter, r *http.Request) {
			close(begun)
			<-r.Context().Done()
		}))
		cut := make(chan error, 1)
		go func() {
			_, err := s.get(t.Context())
			cut <- err
		}()
		<-begun
		s.end()
		if err := <-cut; err == nil {
			t.Error("the request was answered")
		}
		s.log.Field(t, "requests were cut off", "level")
	})
	t.Run("the server itself complains in JSON lines", func(t *testing.T) {
		t.Parallel()
		s := serve(t, patience, handling(func(http.ResponseWriter, *http.Request) { panic("odd") }))
		if _, err := s.get(t.Context()); err == nil {
			t.Error("the request was answered")
		}
		s.end()
		if !strings.Contains(s.log.String(), "odd") {
			t.Errorf("the panic is not in the log:\n%s", s.log)
		}
	})
}

// refused returns when the server accepts no connection any more.
func refused(t *testing.T, s *served) {
	t.Helper()
	await.True(t, "the server refuses connections", func() bool {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.addr)
		if err == nil {
			_ = conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

func TestMain_endsAProgramThatDoesNotStop(t *testing.T) {
	t.Parallel()
	t.Run("a program that does not end", func(t *testing.T) {
		t.Parallel()
		ctx, stop := context.WithCancel(t.Context())
		stop()
		log, lines := logger()
		hung := make(chan struct{})
		defer close(hung)
		err := program.Bounded(ctx, log, time.Millisecond, func(context.Context, *slog.Logger, map[string]string) error {
			<-hung
			return nil
		})
		if err != nil {
			t.Errorf("Bounded: %v", err)
		}
		lines.Field(t, "stopped with work unfinished, others take it over", "level")
	})
	t.Run("a program that ends with an error", func(t *testing.T) {
		t.Parallel()
		ctx, stop := context.WithCancel(t.Context())
		log, _ := logger()
		broken := errors.New("broken")
		err := program.Bounded(ctx, log, time.Hour, func(ctx context.Context, _ *slog.Logger, _ map[string]string) error {
			stop()
			<-ctx.Done()
			return broken
		})
		if !errors.Is(err, broken) {
			t.Errorf("Bounded: %v", err)
		}
	})
}

func TestMain_collectsSeldomUnlessGOGCIsSet(t *testing.T) {
	for _, test := range []struct {
		name, gogc   string
		before, want int
	}{
		{"GOGC is not set", "", 100, 400},
		{"GOGC is the default", "100", 100, 100},
		{"GOGC is another value", "50", 50, 50},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("GOGC", test.gogc)
			found := debug.SetGCPercent(test.before)
			defer debug.SetGCPercent(found)
			program.Main(nil, io.Discard, io.Discard, "sample", func(context.Context, *slog.Logger, map[string]string) error { return nil })
			if got := debug.SetGCPercent(test.before); got != test.want {
				t.Errorf("it is %d, want %d", got, test.want)
			}
		})
	}
}
