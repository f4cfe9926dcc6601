package demo

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/fleet"
)

// Running says where services run already, for a demo that starts none: in
// containers, where nobody may kill another's processes. The services' database
// sessions are cut instead.
type Running struct {
	APIURLs     []string `env:"API_URLS,required"`
	SandboxURL  string   `env:"SANDBOX_URL,required"`
	APIKey      string   `env:"API_KEY,required"`
	DatabaseURL string   `env:"DATABASE_URL,required"`
	ProviderKey string   `env:"STRIPE_SECRET_KEY,required"`
	ProviderURL string   `env:"STRIPE_API_BASE,required"`
}

type running struct {
	Running

	database *pgx.Conn
}

func openRunning(ctx context.Context, at Running) (stage, error) {
	database, err := pgx.Connect(ctx, at.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("connect to the services' database: %w", err)
	}
	return &running{Running: at, database: database}, nil
}

func (r *running) house() house {
	return house{apis: r.APIURLs, sandbox: r.SandboxURL, apiKey: r.APIKey, blow: "cut off the database"}
}

func (r *running) killWorker(ctx context.Context, _ int) error {
	return r.cut(ctx, "payonce-worker")
}

func (r *running) killAPI(ctx context.Context, _ int) error {
	return r.cut(ctx, "payonce-api")
}

const cutSessions = `
select count(*) filter (where pg_terminate_backend(pid))
from pg_stat_activity
where application_name = $1
and datname = current_database()`

// cut ends every database session of a program. One that has just been cut has
// none for a moment, so it looks again for a while.
func (r *running) cut(ctx context.Context, application string) error {
	const (
		looks = 100
		pause = 50 * time.Millisecond
	)
	for range looks {
		var ended int
		if err := r.database.QueryRow(ctx, cutSessions, application).Scan(&ended); err != nil {
			return fmt.Errorf("end the sessions of %s: %w", application, err)
		}
		if ended > 0 {
			return nil
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s has no session at the database", application)
}

func (r *running) restartDatabase(context.Context) error { return errNotRun }

func (r *running) audit(ctx context.Context) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	env := map[string]string{
		"DATABASE_URL":      r.DatabaseURL,
		"STRIPE_SECRET_KEY": r.ProviderKey,
		"STRIPE_API_BASE":   r.ProviderURL,
	}
	allowPlaintext(env)
	return fleet.Run(ctx, env, self, "audit", "--json")
}

// losses are unknown: somebody else looks after the programs.
func (r *running) losses() (lost []string, all int) { return nil, 0 }

func (r *running) introduce(*screen) {}

func (r *running) close(ctx context.Context) error { return r.database.Close(ctx) }
