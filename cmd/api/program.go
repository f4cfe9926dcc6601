package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/doorbell"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/rediscache"
	"github.com/payonce/payonce/internal/writes"
)

const (
	application = "payonce-api"

	connections = 20 // of the pool

	// lockTimeout is short, so that nobody who stands before a lock keeps a
	// connection from others. Whoever may wait longer says so, and few may at once.
	lockTimeout = 25 * time.Millisecond
	waiters     = connections / 4

	// inFlight is how many requests are worked on at a time. At a few milliseconds
	// of a connection for each, the last one waits for well under a second.
	inFlight       = 32 * connections
	perMerchant    = inFlight / 2
	authenticating = connections / 2

	// auditing is how many connections are held by who reads whole tables.
	auditing = connections / 5
)

// run serves until ctx ends.
func run(ctx context.Context, log *slog.Logger, environ map[string]string) error {
	s, err := program.Load[settings](environ)
	if err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	origins, err := s.origins()
	if err != nil {
		return err
	}
	program.LogSettings(log, s)
	traces, log, err := program.Traces(ctx, log, environ, application)
	if err != nil {
		return err
	}
	defer traces.Close(ctx)
	status, wait := s.keyInFlight()
	bell, err := doorbell.New(s.DatabaseURL.Reveal(), log, doorbell.Options{Application: application + "-doorbell"})
	if err != nil {
		return err
	}
	go bell.Run(ctx)
	db, err := program.Open(ctx, log, s.DatabaseURL.Reveal(), postgres.Options{
		Application:    application,
		Role:           postgres.RoleAPI,
		MaxConns:       connections,
		LockTimeout:    lockTimeout,
		Writes:         writes.Order(),
		Tracer:         traces.Statements(),
		Committed:      bell.Committed,
		AllowPlaintext: s.AllowPlaintext,
	})
	if err != nil {
		return err
	}
	defer program.Close(db)
	metrics := meter(log, db)
	in := &intake.Intake{DB: db, Keys: idempotency.Receiver{
		Read: idempotency.BatchedRead(db, connections/4), Retention: s.IdempotencyRetention,
		Wait: wait, Waiters: make(chan struct{}, waiters), Observer: observeKeys(metrics),
	}}
	if url := s.RedisURL.Reveal(); url != "" {
		cache, err := rediscache.Open(ctx, db, url, rediscache.Options{
			AllowPlaintext: s.AllowPlaintext, Log: log, Clock: time.Now,
		})
		if err != nil {
			return err
		}
		defer cache.Close()
		in.Keys.Cache = cache
	}
	ready := program.NewReadiness(db, time.Now)
	defer ready.Close()
	server, err := httpapi.New(httpapi.Config{
		DB:            db,
		Intake:        in,
		InFlight:      status,
		NaturalKeys:   s.IdempotencyKeyMode == "natural",
		StripeSecrets: s.secrets(),
		Limits:        s.limits(),
		Ready:         ready.Ask,
		Origins:       origins,
		Now:           time.Now,
		Log:           log,
		Observe:       observe(metrics, traces), //nolint:contextcheck // a request carries its own context
		Carry:         traces.Carry,
		Metrics:       metrics.Handler(),
	})
	if err != nil {
		return err
	}
	return program.Serve(ctx, log, s.HTTPAddr, server.Server()) //nolint:contextcheck // a request carries its own context
}
