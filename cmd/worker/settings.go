package main

import (
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
	// Connection string of payonce's database. Its user must be a member of the role payonce_worker.
	DatabaseURL program.Secret `env:"DATABASE_URL,required,notEmpty"`
	// Secret key of the Stripe account.
	StripeSecretKey program.Secret `env:"STRIPE_SECRET_KEY,required,notEmpty"`
	// Origin of the provider's API. Empty: https://api.stripe.com.
	StripeAPIBase string `env:"STRIPE_API_BASE"`
	// Id (acct_…) of the account of STRIPE_SECRET_KEY, for a restricted key that may not read it.
	// Empty: the worker asks Stripe at each start.
	StripeAccount string `env:"STRIPE_ACCOUNT"`
	// Address to listen on: health checks and metrics.
	HTTPAddr string `env:"HTTP_ADDR" envDefault:"127.0.0.1:8081"`
	// Handler slots of each receiver: how many messages it handles at a time. From 1 to 10000.
	WorkerConcurrency int `env:"WORKER_CONCURRENCY" envDefault:"256"`
	// Requests to the provider per second, of this worker alone. 0: four fifths of what Stripe permits
	// an account, 80 in live mode and 20 in test mode; no limit at another STRIPE_API_BASE.
	ProviderCallsPerSecond int `env:"PROVIDER_CALLS_PER_SECOND" envDefault:"0"`
	// Requests to the provider at a time, of this worker alone. At least 1.
	ProviderCallsInFlight int `env:"PROVIDER_CALLS_IN_FLIGHT" envDefault:"256"`
	// How long a claimed message stays with a worker that no longer renews its lease. From 500ms to
	// below six hours.
	Lease time.Duration `env:"LEASE" envDefault:"3s"`
	// Failed attempts after which a message becomes a dead letter. At least 1. A wait for an external
	// service does not count.
	MaxAttempts int `env:"MAX_ATTEMPTS" envDefault:"12"`
	// After how long a message that waits for an external service becomes a dead letter.
	GiveUpAfter time.Duration `env:"GIVE_UP_AFTER" envDefault:"72h"`
	// Upper bound of the first pause before a retry. It doubles with each retry, and the pause is a
	// random part of it.
	BackoffBase time.Duration `env:"BACKOFF_BASE" envDefault:"200ms"`
	// Upper bound of every pause before a retry. From BACKOFF_BASE to below six hours.
	BackoffCap time.Duration `env:"BACKOFF_CAP" envDefault:"1m"`
	// How long a payment that needs its customer waits before the charge fails.
	ActionTimeout time.Duration `env:"ACTION_TIMEOUT" envDefault:"1h"`
	// How long the inbox keeps a finished message, by which it recognizes a duplicate.
	InboxRetention time.Duration `env:"INBOX_RETENTION" envDefault:"168h"`
	// Pause between two increments of the workers' audit, once it has caught up. 0: none.
	AuditInterval time.Duration `env:"AUDIT_INTERVAL" envDefault:"1m"`
	// Networks that webhooks may be sent to although they are not public, such as 10.0.0.0/8.
	WebhookAllowCIDRs []netip.Prefix `env:"WEBHOOK_ALLOW_CIDRS"`

	program.Service
}

// Check refuses settings with which the worker cannot work.
func (s settings) Check() error {
	switch {
	case s.WorkerConcurrency < 1 || s.WorkerConcurrency > 10_000:
		return fmt.Errorf("WORKER_CONCURRENCY is %d: set it between 1 and 10000", s.WorkerConcurrency)
	case s.ProviderCallsPerSecond < 0 || s.ProviderCallsInFlight < 1:
		return fmt.Errorf("PROVIDER_CALLS_PER_SECOND is %d and PROVIDER_CALLS_IN_FLIGHT is %d: set the first to 0 or more, and the second to 1 or more",
			s.ProviderCallsPerSecond, s.ProviderCallsInFlight)
	case s.Lease < 500*time.Millisecond:
		return fmt.Errorf("LEASE is %s: a holder needs at least 500ms to renew it", s.Lease)
	case s.MaxAttempts < 1:
		return fmt.Errorf("MAX_ATTEMPTS is %d: no message would ever be tried, so set it to 1 or more", s.MaxAttempts)
	case s.BackoffBase <= 0 || s.BackoffCap < s.BackoffBase:
		return fmt.Errorf("BACKOFF_BASE is %s and BACKOFF_CAP is %s: the base must be positive and the cap not below it", s.BackoffBase, s.BackoffCap)
	case min(s.GiveUpAfter, s.ActionTimeout, s.InboxRetention) <= 0:
		return fmt.Errorf("GIVE_UP_AFTER is %s, ACTION_TIMEOUT is %s and INBOX_RETENTION is %s: set each above 0",
			s.GiveUpAfter, s.ActionTimeout, s.InboxRetention)
	case s.AuditInterval < 0:
		return fmt.Errorf("AUDIT_INTERVAL is %s: set it to 0 for no audit, or to more", s.AuditInterval)
	}
	return s.Service.Check()
}

// services returns what the steps call, and the provider among it once more, for what is about its account.
func (s settings) services(metrics *metrics, traces *telemetry.Traces) (fulfillment.Services, *stripe.Client, error) {
	host := "api.stripe.com"
	if base, err := url.Parse(s.StripeAPIBase); err == nil && base.Hostname() != "" {
		host = base.Hostname()
	}
	provider, err := stripe.New(stripe.Config{
		SecretKey: s.StripeSecretKey.Reveal(), Base: s.StripeAPIBase, Account: s.StripeAccount,
		Limits: stripe.Limits{PerSecond: s.ProviderCallsPerSecond, InFlight: s.ProviderCallsInFlight}, Observe: metrics.observeProvider(traces, host),
	})
	return fulfillment.Services{
		Provider: provider, ActionTimeout: s.ActionTimeout,
		Webhooks: webhook.New(webhook.Config{AllowCIDRs: s.WebhookAllowCIDRs, Now: time.Now}),
	}, provider, err
}
