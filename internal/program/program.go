// Package program is what the programs have in common: how they start, read their
// settings, listen, report their health, and stop.
//
// It promises that a program that cannot run says so in one sentence on stderr and
// exits with 1, that SIGTERM and SIGINT drain it, and that while it runs it prints nothing
// but JSON lines on stderr, in which secrets are hidden.
//
// kong reads arguments, and no library refuses a setting whose name is nearly known. All programs need
// it, so it is a part of none.
package program

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

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/cenkalti/backoff/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// DrainTime is how long a program may finish what it has begun after SIGTERM, which gives
// ten seconds.
const DrainTime = 7 * time.Second

const (
	// stopTime is when a program ends after a signal, even if a database does
	// not answer. Leases and idempotency keys cover the unfinished work.
	stopTime = 9500 * time.Millisecond
	// openTime is how long a program waits for its database at start.
	openTime     = 30 * time.Second
	openInterval = 250 * time.Millisecond
	openOnce     = 10 * time.Second // of this, for a server that stops answering
)

// CollectSeldom lets the heap grow to five times the live bytes before it is collected,
// unless GOGC is set. The programs keep little and allocate much, so a heap of a few
// megabytes would be collected many times a second. Main calls it; so does a benchmark.
func CollectSeldom() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

// Run is a program. It works until ctx ends, with the settings of environ, and returns nil.
// Its error is the sentence that an operator reads.
type Run = func(ctx context.Context, log *slog.Logger, environ map[string]string) error

// Main runs a program with the variables of the process until it ends or gets SIGTERM or SIGINT,
// and returns its exit code. --version and --help are answered on stdout instead; other
// arguments are refused with exit code 2.
func Main(args []string, stdout, stderr io.Writer, name string, run Run) int {
	if len(args) > 0 {
		return answer(args, stdout, stderr, name)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var level slog.Level // info, unless LOG_LEVEL is one; Load refuses what is none
	_ = level.UnmarshalText([]byte(os.Getenv("LOG_LEVEL")))
	log := Logger(stderr, name, level)
	CollectSeldom()
	// Sets GOMEMLIMIT, unless set, to nine tenths of the container's memory limit. Without either there is no limit.
	_, _ = memlimit.Set(memlimit.WithProvider(memlimit.FromCgroup))
	if err := bounded(ctx, log, stopTime, run); err != nil && !errors.Is(err, context.Canceled) {
		log.Error(err.Error()) //nolint:sloglint // the message is the sentence that an operator reads
		return 1
	}
	return 0
}

func bounded(ctx context.Context, log *slog.Logger, limit time.Duration, run Run) error {
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, log, Environ()) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(limit):
		log.WarnContext(ctx, "stopped with work unfinished, others take it over")
		return nil
	}
}

// Service is the part of its settings that an api and a worker have in common.
type Service struct {
	// Address to listen on: metrics, and Go's profiles. Empty: metrics are on HTTP_ADDR, and there are
	// no profiles.
	MetricsAddr string `env:"METRICS_ADDR"`
	// Permits a database over a network without TLS that verifies the server.
	AllowPlaintext bool `env:"ALLOW_PLAINTEXT"`
	// Permits a database user that is a superuser, owns the tables or may act as another role, on a
	// server of your own.
	AllowPrivilegedDatabaseUser bool `env:"ALLOW_PRIVILEGED_DATABASE_USER"`
	// Lowest level of the log lines: debug, info, warn or error.
	LogLevel slog.Level `env:"LOG_LEVEL" envDefault:"info"`
	// Largest number of connections of the pool. The program has a few beside it. From 5 to 1000.
	DatabaseConnections int32 `env:"DATABASE_CONNECTIONS" envDefault:"20"`
	// Refuses at start a server whose synchronous_standby_names is empty.
	ExpectReplication bool `env:"EXPECT_REPLICATION"`
}

// Check refuses a pool with which the program cannot work.
func (s Service) Check() error {
	if s.DatabaseConnections < 5 || s.DatabaseConnections > 1000 {
		return fmt.Errorf("DATABASE_CONNECTIONS is %d: set it between 5 and 1000", s.DatabaseConnections)
	}
	return nil
}

// Open opens the database. It waits at most 30 s for one that is out of reach, and
// refuses at once one that payonce must not run on, or that lacks a migration.
func Open(ctx context.Context, log *slog.Logger, url string, o postgres.Options) (*postgres.DB, error) {
	within, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	open := func() (*postgres.DB, error) {
		once, cancel := context.WithTimeout(within, openOnce)
		defer cancel()
		db, err := postgres.Open(once, url, o)
		if err == nil {
			if err = Migrated(once, db); err != nil {
				db.Close()
			}
		}
		if err != nil && !errors.Is(err, postgres.ErrUnreachable) {
			err = backoff.Permanent(err)
		}
		return db, err
	}
	return backoff.Retry(ctx, open, backoff.WithMaxElapsedTime(openTime),
		backoff.WithBackOff(backoff.NewConstantBackOff(openInterval)),
		backoff.WithNotify(func(err error, _ time.Duration) {
			log.WarnContext(ctx, "waiting for the database", "error", err)
		}))
}

// Serve listens on addr, logs the address, and serves until ctx ends. Requests in flight may finish within DrainTime; then
// they are cut off. The number of connections is bounded.
func Serve(ctx context.Context, log *slog.Logger, addr string, server *http.Server) error {
	listener, err := Listen(ctx, "HTTP_ADDR", addr)
	if err != nil {
		return err
	}
	return ServeListener(ctx, log, listener, server)
}

// ServeListener is Serve on a listener of Listen.
func ServeListener(ctx context.Context, log *slog.Logger, listener net.Listener, server *http.Server) error {
	log.InfoContext(ctx, "listening", "addr", listener.Addr().String())
	return serve(ctx, log, listener, server, DrainTime)
}

// Instance names this process in claims and database sessions: its host and its number there.
func Instance() string {
	host, _ := os.Hostname() // "" where the system has none
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

func serve(ctx context.Context, log *slog.Logger, listener net.Listener, server *http.Server, drain time.Duration) error {
	if server.ErrorLog == nil { // else net/http writes lines that are no JSON
		server.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelWarn)
	}
	addr := listener.Addr().String()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", addr, err)
	case <-ctx.Done():
	}
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	err := server.Shutdown(within)
	if errors.Is(err, context.DeadlineExceeded) {
		log.WarnContext(ctx, "requests were cut off", "after", drain.String())
		err = server.Close()
	}
	if err != nil {
		return fmt.Errorf("stop serving %s: %w", addr, err)
	}
	return nil
}
