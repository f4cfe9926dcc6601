package harness_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// The test binary is also the programs that the tests start: the variable ROLE
// says which.
func TestMain(m *testing.M) {
	switch os.Getenv("ROLE") {
	case "":
		testrun.Main(m)
	case "server":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		code := serve(ctx)
		stop()
		os.Exit(code)
	case "deaf server":
		signal.Ignore(syscall.SIGTERM)
		os.Exit(serve(context.Background()))
	}
}

// serve is a program as the contract has it: it says where it listens, answers
// /readyz, and ends with 0 on SIGTERM.
func serve(ctx context.Context) int {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", os.Getenv("HTTP_ADDR"))
	if err != nil {
		log.ErrorContext(ctx, "cannot listen", "error", err)
		return 1
	}
	log.InfoContext(ctx, "settings", "addr", "not this one")
	log.InfoContext(ctx, "listening", "addr", listener.Addr().String())
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/readyz" {
				w.WriteHeader(http.StatusNotFound)
			}
		}))
	}()
	<-ctx.Done()
	return 0
}

func start(t *testing.T, role string) *harness.Process {
	t.Helper()
	self, err := os.Executable()
	testrun.Must(t, err)
	p, err := harness.Start(bounded(t), harness.Program{
		Name: "program", Path: self, Log: t.TempDir(), Env: map[string]string{"ROLE": role},
	})
	testrun.Must(t, err)
	t.Cleanup(func() { _ = p.Kill() })
	testrun.Must(t, p.WaitReady(bounded(t)))
	return p
}

func TestProcess(t *testing.T) {
	t.Parallel()

	t.Run("waits for its port when another process has it", func(t *testing.T) {
		t.Parallel()
		p := start(t, "server")
		testrun.Must(t, p.Kill())
		var config net.ListenConfig
		var borrowed net.Listener
		testrun.True(t, "the port is free", func() bool {
			var err error
			borrowed, err = config.Listen(t.Context(), "tcp", strings.TrimPrefix(p.URL(), "http://"))
			return err == nil
		})
		restarted := make(chan error, 1)
		ctx := bounded(t)
		go func() { restarted <- p.Restart(ctx) }()
		testrun.True(t, "a refused start is in the log", func() bool {
			return strings.Contains(p.Tail(), "address already in use")
		})
		testrun.Must(t, errors.Join(borrowed.Close(), <-restarted))
	})

	t.Run("ends in order although it is paused", func(t *testing.T) {
		t.Parallel()
		p := start(t, "server")
		testrun.Must(t, errors.Join(p.Pause(), p.Stop(bounded(t)), p.Stop(bounded(t))))
	})

	t.Run("is killed when it does not end in time", func(t *testing.T) {
		t.Parallel()
		p := start(t, "deaf server")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := p.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stop: %v", err)
		}
		if p.Kill() == nil {
			t.Error("it still runs")
		}
	})
}

var bounded = testrun.Bounded
