package main

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/internal/webhook"
)

// settings are the program's environment.
type settings struct {
	DatabaseURL       program.Secret `env:"DATABASE_URL,required,notEmpty"`
	StripeSecretKey   program.Secret `env:"STRIPE_SECRET_KEY,required,notEmpty"`
	StripeAPIBase     string         `env:"STRIPE_API_BASE"`
	HTTPAddr          string         `env:"HTTP_ADDR" envDefault:"127.0.0.1:8081"`
	AllowPlaintext    bool           `env:"ALLOW_PLAINTEXT"`
	WorkerConcurrency int            `env:"WORKER_CONCURRENCY" envDefault:"256"`
	Lease             time.Duration  `env:"LEASE" envDefault:"3s"`
	MaxAttempts       int            `env:"MAX_ATTEMPTS" envDefault:"12"`
	GiveUpAfter       time.Duration  `env:"GIVE_UP_AFTER" envDefault:"72h"`
	BackoffBase       time.Duration  `env:"BACKOFF_BASE" envDefault:"200ms"`
	BackoffCap        time.Duration  `env:"BACKOFF_CAP" envDefault:"1m"`
	InboxRetention    time.Duration  `env:"INBOX_RETENTION" envDefault:"168h"`
	OutboxRetention   time.Duration  `env:"OUTBOX_RETENTION" envDefault:"24h"`
	WebhookAllowCIDRs []netip.Prefix `env:"WEBHOOK_ALLOW_CIDRS"`
}

const (
	maxConcurrency = 10_000
	shortestLease  = 500 * time.Millisecond
	callTimeout    = 10 * time.Second // of one provider call or webhook
)

// Check refuses settings with which the worker cannot work.
func (s settings) Check() error {
	switch {
	case s.WorkerConcurrency < 1 || s.WorkerConcurrency > maxConcurrency:
		return fmt.Errorf("WORKER_CONCURRENCY is %d: set it between 1 and %d", s.WorkerConcurrency, maxConcurrency)
	case s.Lease < shortestLease:
		return fmt.Errorf("LEASE is %s: a holder needs at least %s to renew it", s.Lease, shortestLease)
	case s.MaxAttempts < 1:
		return fmt.Errorf("MAX_ATTEMPTS is %d: no message would ever be tried, so set it to 1 or more", s.MaxAttempts)
	case s.GiveUpAfter <= 0:
		return fmt.Errorf("GIVE_UP_AFTER is %s: set it to how long the provider may be out of reach", s.GiveUpAfter)
	case s.BackoffBase <= 0 || s.BackoffCap < s.BackoffBase:
		return fmt.Errorf("BACKOFF_BASE is %s and BACKOFF_CAP is %s: the base must be positive and the cap not below it", s.BackoffBase, s.BackoffCap)
	case s.OutboxRetention <= 0:
		return errors.New("OUTBOX_RETENTION is not positive: messages would be removed before they are received")
	case s.InboxRetention <= s.OutboxRetention:
		return fmt.Errorf("INBOX_RETENTION (%s) is not longer than OUTBOX_RETENTION (%s): a message delivered again late would be taken for a new one",
			s.InboxRetention, s.OutboxRetention)
	}
	return nil
}

// providerHost is the host of the provider, for traces.
func (s settings) providerHost() string {
	if base, err := url.Parse(s.StripeAPIBase); err == nil && base.Hostname() != "" {
		return base.Hostname()
	}
	return "api.stripe.com"
}

// services are the clients of the external services that steps call.
func (s settings) services(metrics *metrics, traces *telemetry.Traces) (fulfillment.Services, error) {
	provider, err := stripe.New(stripe.Config{
		SecretKey: s.StripeSecretKey.Reveal(), Base: s.StripeAPIBase, Timeout: callTimeout,
		Observe: observeProvider(metrics, traces, s.providerHost()),
	})
	return fulfillment.Services{
		Provider: provider,
		Webhooks: webhook.New(webhook.Config{
			AllowCIDRs: s.WebhookAllowCIDRs, Timeout: callTimeout, Observe: traces.Delivering, Now: time.Now,
		}),
	}, err
}
