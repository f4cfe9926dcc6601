package demo

import (
	"context"
	"os"
	"time"

	"github.com/payonce/payonce/internal/robustness/harness"
)

// Running is where services run already, for a demo that starts none: in
// containers, where a program cannot kill another. The services' database sessions
// are cut instead.
type Running struct {
	// URLs of the apis, separated by commas.
	APIURLs []string `env:"API_URLS,required"`
	// URL of the sandbox.
	SandboxURL string `env:"SANDBOX_URL,required"`
	// API key of the merchant that charges.
	APIKey string `env:"API_KEY,required"`
	// URL of the console, which the demo prints first. Empty: there is none.
	ConsoleURL string `env:"CONSOLE_URL"`
	// Connection string of payonce's PostgreSQL database.
	DatabaseURL string `env:"DATABASE_URL,required"`
	// Secret key by which the audit asks the sandbox.
	ProviderKey string `env:"STRIPE_SECRET_KEY,required"`
	// URL of the provider's API in the sandbox.
	ProviderURL string `env:"STRIPE_API_BASE,required"`
}

// join makes a stage of services that run already.
func (s *stage) join(ctx context.Context, at Running) (err error) {
	if s.world.Payonce, err = os.Executable(); err != nil {
		return err
	}
	s.world.Service, s.world.Provider, s.world.Secrets.Provider = at.DatabaseURL, at.ProviderURL, at.ProviderKey
	s.killed = "cut off the database"
	s.merchant = &merchant{Client: harness.NewClient(at.APIKey, at.APIURLs...), sandbox: harness.Sandbox(at.SandboxURL)}
	return s.openPool(ctx)
}

const cutSessions = `
select count(*) filter (where pg_terminate_backend(pid)) > 0
  from pg_stat_activity
 where application_name like 'payonce-' || $1 || ' %'
   and datname = current_database()`

// cutSessions ends the database sessions of the apis or the workers. A program that was cut just now
// has none for a while.
func (s *stage) cutSessions(ctx context.Context, program string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return await(ctx, s.db, cutSessions, program)
}
