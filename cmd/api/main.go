// Command api accepts charges over HTTP. It never calls the provider.
package main

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/service"
	"github.com/payonce/payonce/internal/telemetry"
)

const (
	application = "payonce-api"

	// lockTimeout is short, so that a request that waits for a lock keeps no connection from
	// others.
	lockTimeout = 25 * time.Millisecond

	answerBytes = 32 << 20 // of answers that are being sent

	unsignedTime = 3 * time.Second // to read the body of a provider event
)

func main() { os.Exit(program.Main(os.Args[1:], os.Stdout, os.Stderr, "api", run)) }

// run serves until ctx ends.
func run(ctx context.Context, log *slog.Logger, environ map[string]string) error {
	s, err := program.Settings[settings](log, environ)
	if err != nil {
		return err
	}
	traces, log, err := program.Traces(ctx, log, environ, application)
	if err != nil {
		return err
	}
	defer traces.Close(ctx)
	bell := service.NewBell(log)
	lasting, end := context.WithCancel(context.WithoutCancel(ctx)) // ends after the last commit of the drain
	defer end()
	db, err := program.Open(ctx, log, s.DatabaseURL.Reveal(), s.database(traces, service.Committed(bell)))
	if err != nil {
		return err
	}
	defer db.Close()
	var ringing sync.WaitGroup
	ringing.Go(func() { bell.Run(lasting, db.Pool()) })
	defer func() { end(); ringing.Wait() }()
	metrics := meter(log, db)
	ready := program.NewReadiness(lasting, db, time.Now)
	defer ready.Close()
	config := s.config()
	config.DB, config.Intake = db, &intake.Intake{DB: db, Options: s.options(db, metrics), OnCommit: metrics.committed}
	config.Observe, config.Carry = observe(metrics, traces), traces.Carry //nolint:contextcheck // a request carries its own context
	config.Ready, config.Log, config.Metrics = ready.Ask, log, s.Beside(metrics.Handler())
	server := httpapi.New(config)
	public := server.Server() //nolint:contextcheck // a request carries its own context
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return program.ServeMetrics(ctx, log, s.MetricsAddr, metrics.Handler()) })
	g.Go(func() error { return program.Serve(ctx, log, s.HTTPAddr, public) })
	return g.Wait()
}

func (s settings) database(traces *telemetry.Traces, committed func(names []string)) postgres.Options {
	o := s.Pool(application, postgres.RoleAPI)
	o.CheckSession = restore.CheckSession()
	o.LockTimeout, o.Writes, o.Tracer, o.Committed = lockTimeout, service.Statements(), traces.Statements(), committed
	return o
}

// config is the part of the configuration that the settings decide alone.
func (s settings) config() httpapi.Config {
	return httpapi.Config{
		InFlight:          inFlightStatus[s.InFlight],
		OneChargePerOrder: s.OneChargePerOrder,
		StripeSecrets:     split(s.StripeWebhookSecret.Reveal()), // two while one replaces the other
		Limits:            s.limits(),
		KeepsCardNumbers:  s.CardNumberCheck == "off",
		TrustedProxies:    s.TrustedProxies,
		Now:               time.Now,
	}
}

// limits follow from the connections. At a few milliseconds of a connection for each of the
// requests that are handled at a time, the last one waits for well under a second.
func (s settings) limits() httpapi.Limits {
	connections := int(s.DatabaseConnections)
	inFlight := 32 * connections
	return httpapi.Limits{
		PerSecond: s.RateLimit, InFlight: inFlight, PerMerchant: inFlight / 2,
		Authenticating: connections / 2, AnswerBytes: answerBytes,
		Waiting: inFlight / 4, UnsignedTime: unsignedTime,
		Guesses: s.AuthenticationFailures,
	}
}

// options are those of keyed requests.
func (s settings) options(db *postgres.DB, m *metrics) idempotency.Options {
	read := intake.BatchedRead(db, int(s.DatabaseConnections)/4)
	return idempotency.Options{
		Retention: s.IdempotencyRetention, Wait: s.wait(),
		Read: func(ctx context.Context, q groupcommit.Querier, key idempotency.Key) (idempotency.KeyState, error) {
			defer m.lookup.Time()()
			return read(ctx, q, key)
		},
	}
}
