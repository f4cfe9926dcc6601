// Command api accepts charges over HTTP. It never calls the provider.
package main

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/service"
)

const (
	// lockTimeout is short, so that a request that waits for a lock keeps no connection from
	// others.
	lockTimeout = 25 * time.Millisecond

	answerBytes = 32 << 20 // of answers that are being sent
)

func main() { os.Exit(program.Main(os.Args[1:], os.Stdout, os.Stderr, "api", run)) }

// run serves until ctx ends.
func run(ctx context.Context, log *slog.Logger, environ map[string]string) error {
	s, err := program.Settings[settings](log, environ)
	if err != nil {
		return err
	}
	o := service.Options{
		Name: "api", DatabaseURL: s.DatabaseURL, Settings: s.Service, Role: postgres.RoleAPI, LockTimeout: lockTimeout, Now: time.Now,
	}
	return service.Run(ctx, log, environ, o, func(ctx context.Context, api *service.Service) error {
		if err := api.Open(ctx); err != nil {
			return err
		}
		m := meter(api.Metrics)
		config := s.config()
		config.DB, config.Intake = api.DB, &intake.Intake{DB: api.DB, Options: s.options(api.DB)}
		config.Observe, config.Carry = m.observe(api.Traces), api.Traces.Carry //nolint:contextcheck // a request carries its own context
		config.Health, config.Log = program.Health(api.Ready, api.Beside()).Handler, api.Log
		return api.Serve(ctx, s.HTTPAddr, httpapi.New(config).Server()) //nolint:contextcheck // as above
	})
}

// config is the part of the configuration that the settings decide alone.
func (s settings) config() httpapi.Config {
	return httpapi.Config{
		InFlight:          inFlightStatus[s.InFlight],
		OneChargePerOrder: s.OneChargePerOrder,
		StripeSecrets:     strings.FieldsFunc(s.StripeWebhookSecret.Reveal(), between), // two while one replaces the other
		Limits:            s.limits(),
		KeepsCardNumbers:  s.CardNumberCheck == "off",
		TrustedProxies:    s.TrustedProxies,
		Now:               time.Now,
	}
}

// between separates secrets, which hold neither commas nor blanks.
func between(r rune) bool { return r == ',' || unicode.IsSpace(r) }

// limits follow from the connections. At a few milliseconds of a connection for each of the
// requests that are handled at a time, the last one waits for well under a second.
func (s settings) limits() httpapi.Limits {
	connections := int(s.DatabaseConnections)
	return httpapi.Limits{
		PerSecond: s.RateLimit, InFlight: 32 * connections, Authenticating: connections / 2, AnswerBytes: answerBytes,
		Guesses: s.AuthenticationFailures,
	}
}

// options are those of keyed requests.
func (s settings) options(db *postgres.DB) idempotency.Options {
	return idempotency.Options{
		Retention: s.IdempotencyRetention, Wait: s.wait(), Read: intake.BatchedRead(db, int(s.DatabaseConnections)/4),
	}
}
