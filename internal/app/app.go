// Package app is what the programs have in common: how they start, listen, tell
// their health, and stop.
//
// It promises that a program that cannot run says so in one sentence on stderr
// and exits with 1; that SIGTERM and SIGINT drain it; and that nothing but JSON
// lines on stderr is printed.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/payonce/payonce/internal/config"
	"github.com/payonce/payonce/internal/postgres"
)

// How long a program finishes what it has begun, and how long it waits for a
// pool to close. Together they stay under the ten seconds that SIGTERM gives.
const (
	drainTime = 7 * time.Second
	closeTime = time.Second
)

// DrainTime is how long a program may finish what it has begun after SIGTERM.
func DrainTime() time.Duration { return drainTime }

// CollectSeldom lets the heap of a program grow to five times of what is kept before it
// is collected, unless GOGC says otherwise. The programs keep little for long and drop
// much soon: a heap of a few megabytes would be collected many times a second. Main calls
// it; it is for whoever is measured beside them.
func CollectSeldom() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

// Main runs a program until it ends or is told to stop, and returns its exit
// code.
func Main(stderr io.Writer, name string, run func(context.Context, *slog.Logger) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	log := config.Logger(stderr, name)
	CollectSeldom()
	if err := bounded(ctx, log, stopTime, run); err != nil && !errors.Is(err, context.Canceled) {
		log.Error(err.Error()) //nolint:sloglint // the message is the sentence that an operator reads
		return 1
	}
	return 0
}

// stopTime is when a program that was told to stop is gone, whatever still holds
// it: a database that does not answer must not. What it leaves unfinished is what
// leases and idempotency keys are for.
const stopTime = 9500 * time.Millisecond

func bounded(ctx context.Context, log *slog.Logger, patience time.Duration, run func(context.Context, *slog.Logger) error) error {
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, log) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		log.WarnContext(ctx, "stopped with work unfinished, others take it over")
		return nil
	}
}

// Patience for a database that is not there yet when the program starts.
const (
	openPatience = 30 * time.Second
	openInterval = 250 * time.Millisecond
)

// Open opens the database. One that is out of reach is waited for, at most 30 s;
// one that payonce must not run on is refused at once.
func Open(ctx context.Context, log *slog.Logger, url string, o postgres.Options) (*postgres.DB, error) {
	patience, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	for {
		db, err := postgres.Open(patience, url, o)
		if err == nil || !errors.Is(err, postgres.ErrUnreachable) {
			return db, err
		}
		log.WarnContext(ctx, "waiting for the database", "error", err)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-patience.Done():
			return nil, err
		case <-time.After(openInterval):
		}
	}
}

// Close closes a pool. A connection that is still at work is waited for, at most
// one second: it then ends with the process, and the server finishes or rolls
// back what it had begun.
func Close(db *postgres.DB) {
	closed := make(chan struct{})
	go func() {
		db.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(closeTime):
	}
}

// Serve listens on addr, serves until ctx ends, and lets requests under way
// finish within DrainTime; those that do not are cut off, and their clients send
// them again. It logs the address that it listens on.
func Serve(ctx context.Context, log *slog.Logger, addr string, server *http.Server) error {
	return serve(ctx, log, addr, server, drainTime)
}

func serve(ctx context.Context, log *slog.Logger, addr string, server *http.Server, drain time.Duration) error {
	if server.ErrorLog == nil { // else net/http writes lines that are no JSON
		server.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelWarn)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("HTTP_ADDR %s cannot be listened on: %w", addr, err)
	}
	log.InfoContext(ctx, "listening", "addr", listener.Addr().String())
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", addr, err)
	case <-ctx.Done():
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	err = server.Shutdown(within)
	if errors.Is(err, context.DeadlineExceeded) {
		log.WarnContext(ctx, "requests were cut off", "after", drain.String())
		err = server.Close()
	}
	if err != nil {
		return fmt.Errorf("stop serving %s: %w", addr, err)
	}
	return nil
}
