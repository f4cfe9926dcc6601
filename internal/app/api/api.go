// Package api wires the program that accepts: HTTP, intake, ledger. It cannot
// reach the provider; a test holds that (internal/arch).
package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/app/doorbell"
	"github.com/payonce/payonce/internal/app/writes"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/rediscache"
)

// Settings are the program's environment.
type Settings struct {
	DatabaseURL          program.Secret `env:"DATABASE_URL,required,notEmpty"`
	HTTPAddr             string         `env:"HTTP_ADDR" envDefault:"127.0.0.1:8080"`
	AllowPlaintext       bool           `env:"ALLOW_PLAINTEXT"`
	IdempotencyRetention time.Duration  `env:"IDEMPOTENCY_RETENTION" envDefault:"168h"`
	IdempotencyKeyMode   string         `env:"IDEMPOTENCY_KEY_MODE" envDefault:"required" oneof:"required|natural"`
	RateLimit            int            `env:"RATE_LIMIT" envDefault:"0"` // per merchant and second
	CORSOrigins          string         `env:"CORS_ORIGINS"`
	InFlight             string         `env:"IN_FLIGHT" envDefault:"wait" oneof:"wait|409|425|202"`
	InFlightWait         time.Duration  `env:"IN_FLIGHT_WAIT" envDefault:"250ms"`
	RedisURL             program.Secret `env:"REDIS_URL"`
	StripeWebhookSecret  program.Secret `env:"STRIPE_WEBHOOK_SECRET"`
}

// Bounds of IN_FLIGHT_WAIT: a request must end before its own time-out.
const (
	shortestWait = time.Millisecond
	longestWait  = 10 * time.Second
)

func (s Settings) check() error {
	if s.IdempotencyRetention <= 0 {
		return errors.New("IDEMPOTENCY_RETENTION is not positive: keys would expire before anybody could retry")
	}
	if s.RateLimit < 0 {
		return fmt.Errorf("RATE_LIMIT is %d: set it to the requests that a merchant may send in a second, or to 0 for any number", s.RateLimit)
	}
	if s.InFlightWait < shortestWait || s.InFlightWait > longestWait {
		return fmt.Errorf("IN_FLIGHT_WAIT is %s: set it between %s and %s", s.InFlightWait, shortestWait, longestWait)
	}
	return nil
}

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

// limits are those of one process.
func (s Settings) limits() httpapi.Limits {
	return httpapi.Limits{
		PerSecond: s.RateLimit, InFlight: inFlight, PerMerchant: perMerchant, Authenticating: authenticating,
		Auditing: auditing,
	}
}

// keyInFlight is the answer to a key whose first request is under way, and how
// long it is waited for before.
func (s Settings) keyInFlight() (status int, wait time.Duration) {
	switch s.InFlight {
	case "409":
		return http.StatusConflict, 0
	case "425":
		return http.StatusTooEarly, 0
	case "202":
		return http.StatusAccepted, 0
	default:
		return http.StatusConflict, s.InFlightWait
	}
}

// secrets are those by which the provider signs its events. While one replaces
// another there are two, with a comma between them.
func (s Settings) secrets() []string {
	var secrets []string
	for secret := range strings.SplitSeq(s.StripeWebhookSecret.Reveal(), ",") {
		if secret = strings.TrimSpace(secret); secret != "" {
			secrets = append(secrets, secret)
		}
	}
	return secrets
}

// Run serves until ctx ends. By now the age of the provider's signatures and of
// what is cached is judged; nothing that is stored depends on it.
func Run(ctx context.Context, log *slog.Logger, now func() time.Time) error {
	settings, err := program.Load[Settings]()
	if err != nil {
		return err
	}
	if err := settings.check(); err != nil {
		return err
	}
	origins, err := settings.origins()
	if err != nil {
		return err
	}
	program.LogSettings(log, settings)
	traces, log, err := program.Traces(ctx, log, application)
	if err != nil {
		return err
	}
	defer traces.Close(ctx)
	status, wait := settings.keyInFlight()
	bell, err := doorbell.New(settings.DatabaseURL.Reveal(), log, doorbell.Options{Application: application + "-doorbell"})
	if err != nil {
		return err
	}
	go bell.Run(ctx)
	db, err := program.Open(ctx, log, settings.DatabaseURL.Reveal(), postgres.Options{
		Application:    application,
		Role:           postgres.RoleAPI,
		MaxConns:       connections,
		LockTimeout:    lockTimeout,
		Writes:         writes.Order(),
		Tracer:         traces.Statements(),
		Committed:      bell.Committed,
		AllowPlaintext: settings.AllowPlaintext,
	})
	if err != nil {
		return err
	}
	defer program.Close(db)
	metrics := meter(log, db, now)
	in := &intake.Intake{DB: db, Keys: idempotency.Receiver{
		Keys: idempotency.NewKeyReader(db, connections/4), Retention: settings.IdempotencyRetention,
		Wait: wait, Waiters: make(chan struct{}, waiters), Observer: observeKeys(metrics),
	}}
	if url := settings.RedisURL.Reveal(); url != "" {
		cache, err := rediscache.Open(ctx, db, url, rediscache.Options{
			AllowPlaintext: settings.AllowPlaintext, Log: log, Clock: now,
		})
		if err != nil {
			return err
		}
		defer cache.Close()
		in.Keys.Cache = cache
	}
	ready := program.NewReadiness(db, now)
	defer ready.Close()
	server, err := httpapi.New(httpapi.Config{
		DB:            db,
		Intake:        in,
		InFlight:      status,
		NaturalKeys:   settings.IdempotencyKeyMode == "natural",
		StripeSecrets: settings.secrets(),
		Limits:        settings.limits(),
		Ready:         ready.Ask,
		Origins:       origins,
		Now:           now,
		Log:           log,
		Observe:       observe(metrics, traces, now), //nolint:contextcheck // a request carries its own context
		Carry:         traces.Carry,
		Metrics:       metrics.Handler(),
	})
	if err != nil {
		return err
	}
	return program.Serve(ctx, log, settings.HTTPAddr, server.Server()) //nolint:contextcheck // a request carries its own context
}
