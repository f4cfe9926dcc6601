package demo

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/robustness/fleet"
	"github.com/payonce/payonce/internal/robustness/traffic"
)

// own is a stage of the demo's own: two apis, two workers and a sandbox as child
// processes, with two databases on one server.
type own struct {
	fleet.World

	folder *folder
	server *databases
}

const (
	startTimeout   = 2 * time.Minute        // a program that ends is noticed at once
	killPause      = 150 * time.Millisecond // as a supervisor needs
	programsOfKind = 2
)

func openOwn(ctx context.Context, o Options, plan traffic.Plan, screen *screen) (stage, error) {
	s := &own{World: fleet.World{Secrets: fleet.Secrets{
		API:      "sk_test_" + hex.EncodeToString(random(32)),
		Provider: "sk_test_demo",
		Events:   newWebhookSecret(),
		Shop:     newWebhookSecret(),
	}}}
	if err := s.open(ctx, o, plan, screen); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

func (s *own) open(ctx context.Context, o Options, plan traffic.Plan, screen *screen) error {
	var err error
	if s.folder, err = newFolder(os.TempDir()); err != nil {
		return err
	}
	s.Log = s.folder.path
	screen.say("building api, worker, sandbox and payonce")
	if s.Binaries, err = fleet.Build(ctx, s.folder.path); err != nil {
		return err
	}
	if o.Database == "" {
		screen.say("starting PostgreSQL")
	} else {
		screen.say("making two databases on the server given")
	}
	if s.server, err = openDatabases(ctx, o.Database); err != nil {
		return err
	}
	screen.say("starting 2 apis, 2 workers and the sandbox")
	return s.start(ctx, plan)
}

// start starts the programs in the order in which they need one another's
// addresses.
func (s *own) start(ctx context.Context, plan traffic.Plan) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var err error
	if s.Service, err = s.server.create(ctx, "payonce"); err != nil {
		return err
	}
	if s.Books, err = s.server.create(ctx, "sandbox"); err != nil {
		return err
	}
	if _, err := s.Run(ctx, "migrate"); err != nil {
		return err
	}
	s.APIs, err = s.StartAll(ctx, "api", s.API, programsOfKind, func(int) map[string]string { return s.APIEnv() })
	if err != nil {
		return err
	}
	// A provider knows one address, so the first api receives all its webhooks.
	if err := s.StartSandbox(ctx, s.APIs[0].URL()); err != nil {
		return err
	}
	seed := []string{
		"seed", "--merchant", "demo", "--api-key", s.Secrets.API,
		"--webhook-url", s.Sandbox.URL() + "/shop/webhooks", "--webhook-secret", s.Secrets.Shop,
	}
	for _, sku := range slices.Sorted(maps.Keys(plan.Stock)) {
		seed = append(seed, "--sku", fmt.Sprintf("%s=%d", sku, plan.Stock[sku]))
	}
	if _, err := s.Run(ctx, seed...); err != nil {
		return err
	}
	s.Workers, err = s.StartAll(ctx, "worker", s.Worker, programsOfKind, func(int) map[string]string { return s.WorkerEnv(s.Sandbox.URL()) })
	return err
}

func (s *own) target() traffic.Target {
	t := traffic.Target{Sandbox: s.Sandbox.URL(), APIKey: s.Secrets.API}
	for _, api := range s.APIs {
		t.APIs = append(t.APIs, api.URL())
	}
	return t
}

func (s *own) killed() string { return "killed" }

func (s *own) killWorker(ctx context.Context, which int) error { return killOne(ctx, s.Workers, which) }

func (s *own) killAPI(ctx context.Context, which int) error { return killOne(ctx, s.APIs, which) }

func killOne(ctx context.Context, of []*fleet.Process, which int) error {
	p := of[which%len(of)]
	if err := p.Kill(); err != nil {
		return fmt.Errorf("%w\n%s", err, p.Tail())
	}
	if err := traffic.Wait(ctx, killPause); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return p.Restart(ctx)
}

func (s *own) restartDatabase(ctx context.Context) error { return s.server.restart(ctx) }

func (s *own) audit(ctx context.Context) ([]byte, error) { return s.Run(ctx, "audit", "--json") }

func (s *own) losses() (lost []string, all int) { return s.Losses(), len(s.Processes()) }

func (s *own) introduce(screen *screen) {
	for _, p := range s.Processes() {
		screen.say("  %-10s %s", p.Name(), p.URL())
	}
	screen.say("  %-10s %s", "docs", s.APIs[0].URL()+"/docs")
	screen.say("  %-10s %s", "books", s.Sandbox.URL()+"/books")
	screen.say("  %-10s %s", "database", s.Service)
	screen.say("  %-10s %s", "logs", s.folder.path)
	screen.say("  %-10s %s", "API key", s.Secrets.API)
	screen.say("everything stays up until Ctrl-C")
}

// close drains the programs, then removes the databases and the folder.
func (s *own) close(ctx context.Context) error {
	err := s.Stop(ctx)
	if s.server != nil {
		err = errors.Join(err, s.server.close(ctx))
	}
	if s.folder != nil {
		err = errors.Join(err, s.folder.remove())
	}
	return err
}

// Running is where services run already, for a demo that starts none: in
// containers, where a program cannot kill another. The services' database sessions
// are cut instead.
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

func (r *running) target() traffic.Target {
	return traffic.Target{APIs: r.APIURLs, Sandbox: r.SandboxURL, APIKey: r.APIKey}
}

func (r *running) killed() string { return "cut off the database" }

func (r *running) killWorker(ctx context.Context, _ int) error { return r.cut(ctx, "payonce-worker") }
func (r *running) killAPI(ctx context.Context, _ int) error    { return r.cut(ctx, "payonce-api") }

const cutSessions = `
select count(*) filter (where pg_terminate_backend(pid))
from pg_stat_activity
where application_name = $1
and datname = current_database()`

// cut ends every database session of a program. A program that was cut just now has
// none, so it retries for a while.
func (r *running) cut(ctx context.Context, application string) error {
	for range 100 {
		var ended int
		if err := r.database.QueryRow(ctx, cutSessions, application).Scan(&ended); err != nil {
			return fmt.Errorf("end the sessions of %s: %w", application, err)
		}
		if ended > 0 {
			return nil
		}
		if err := traffic.Wait(ctx, 50*time.Millisecond); err != nil {
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
	env := map[string]string{"DATABASE_URL": r.DatabaseURL, "STRIPE_SECRET_KEY": r.ProviderKey, "STRIPE_API_BASE": r.ProviderURL}
	return fleet.Run(ctx, env, self, "audit", "--json")
}

func (r *running) losses() (lost []string, all int) { return nil, 0 }

func (r *running) introduce(*screen) {}

func (r *running) close(ctx context.Context) error { return r.database.Close(ctx) }

// newSeed is small enough to be typed.
func newSeed() uint64 { return 1 + uint64(binary.BigEndian.Uint32(random(4))) }

// newRunName has letters alone: digits could look like a card number, which the
// service refuses.
func newRunName() string {
	name := random(8)
	for i, b := range name {
		name[i] = 'a' + b%26
	}
	return string(name)
}

// newWebhookSecret is a secret in the form of Standard Webhooks.
func newWebhookSecret() string { return "whsec_" + base64.StdEncoding.EncodeToString(random(32)) }

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}
