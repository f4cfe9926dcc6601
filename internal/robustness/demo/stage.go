package demo

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/robustness/fleet"
	"github.com/payonce/payonce/internal/robustness/traffic"
	"github.com/payonce/payonce/internal/tempdir"
)

// own is a stage of the demo's own: two apis, two workers and a sandbox as child
// processes, with two databases on one server.
type own struct {
	fleet.World

	folder  *tempdir.Dir // of the programs and their logs
	server  *databases
	visited bool // it stays up for visitors

	striking sync.Mutex // one strike at a time: a program that starts needs the database
}

// The address and the API key for visitors are those of the README. Another address is
// taken where this one is in use.
const (
	visitorsAddress = "127.0.0.1:8080"
	visitorsKey     = "sk_test_demo"
)

const (
	startTimeout   = 2 * time.Minute        // a program that ends is noticed at once
	killPause      = 150 * time.Millisecond // as a supervisor needs
	programsOfKind = 2
)

func openOwn(ctx context.Context, o Options, plan traffic.Plan) (*own, error) {
	s := &own{visited: o.Keep, World: fleet.World{Secrets: fleet.Secrets{
		API:      "sk_test_" + rand.Text(),
		Provider: "sk_test_demo",
		Events:   newWebhookSecret(),
		Shop:     newWebhookSecret(),
	}}}
	if s.visited {
		s.Secrets.API = visitorsKey
	}
	if err := s.open(ctx, o, plan); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

func (s *own) open(ctx context.Context, o Options, plan traffic.Plan) error {
	var err error
	if s.folder, err = tempdir.New(os.TempDir(), "payonce-demo-"); err != nil {
		return err
	}
	s.Log = s.folder.Path
	if o.lab != nil {
		s.Binaries = *o.lab
	} else if s.Binaries, err = o.build(ctx, s.Log); err != nil {
		return err
	}
	if o.Database == "" {
		o.say("starting PostgreSQL")
	} else {
		o.say("making two databases on the server given")
	}
	if s.server, err = openDatabases(ctx, o.Database, o.lab != nil); err != nil {
		return err
	}
	o.say("starting 2 apis, 2 workers and the sandbox")
	return s.start(ctx, plan)
}

func (o Options) build(ctx context.Context, folder string) (fleet.Binaries, error) {
	o.say("building api, worker, sandbox and payonce")
	return fleet.Build(ctx, folder)
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
	if _, err := s.Run(ctx, "migrate"); err != nil {
		return err
	}
	s.APIs, err = s.StartAll(ctx, "api", s.API, programsOfKind, func(i int) map[string]string {
		env := s.APIEnv()
		if i == 0 && s.visited && isFree(ctx, visitorsAddress) {
			env["HTTP_ADDR"] = visitorsAddress
		}
		return env
	})
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

func isFree(ctx context.Context, address string) bool {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	return err == nil && listener.Close() == nil
}

func (s *own) target() traffic.Target {
	t := traffic.Target{Sandbox: s.Sandbox.URL(), APIKey: s.Secrets.API}
	for _, api := range s.APIs {
		t.APIs = append(t.APIs, api.URL())
	}
	return t
}

func (s *own) killed() string { return "killed" }

func (s *own) kill(ctx context.Context, program string, which int) error {
	s.striking.Lock()
	defer s.striking.Unlock()
	p := s.Workers[which]
	if program == "api" {
		p = s.APIs[which]
	}
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

func (s *own) restartDatabase(ctx context.Context) error {
	s.striking.Lock()
	defer s.striking.Unlock()
	return s.server.restart(ctx)
}

func (s *own) audit(ctx context.Context) ([]byte, error) { return s.Run(ctx, "audit", "--json") }

func (s *own) database() string { return s.Service }

func (s *own) losses() (lost []string, all int) { return s.Losses(), len(s.Processes()) }

func (s *own) introduction() string {
	var text strings.Builder
	line := func(name, value string) { fmt.Fprintf(&text, "  %-10s %s\n", name, value) }
	for _, p := range s.Processes() {
		line(p.Name(), p.URL())
	}
	line("contract", s.APIs[0].URL()+"/openapi.yaml")
	line("books", s.Sandbox.URL()+"/books")
	line("database", s.Service)
	line("logs", s.Log)
	line("API key", s.Secrets.API)
	return text.String() + "everything stays up until Ctrl-C"
}

// close drains the programs, then removes the databases and the folder.
func (s *own) close(ctx context.Context) error {
	err := s.Stop(ctx)
	if s.server != nil {
		err = errors.Join(err, s.server.close(ctx))
	}
	if s.folder != nil {
		err = errors.Join(err, s.folder.Close())
	}
	return err
}

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

type running struct {
	Running

	sessions *pgx.Conn
}

func openRunning(ctx context.Context, at Running) (stage, error) {
	database, err := pgx.Connect(ctx, at.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("connect to the services' database: %w", err)
	}
	return &running{Running: at, sessions: database}, nil
}

func (r *running) target() traffic.Target {
	return traffic.Target{APIs: r.APIURLs, Sandbox: r.SandboxURL, APIKey: r.APIKey}
}

func (r *running) killed() string { return "cut off the database" }

const cutSessions = `
select count(*) filter (where pg_terminate_backend(pid))
from pg_stat_activity
where application_name like $1 || ' %'
and datname = current_database()`

// kill ends every database session of a program. A program that was cut just now has
// none, so it retries for a while.
func (r *running) kill(ctx context.Context, program string, _ int) error {
	for range 100 {
		var ended int
		if err := r.sessions.QueryRow(ctx, cutSessions, "payonce-"+program).Scan(&ended); err != nil {
			return fmt.Errorf("end the sessions of the %s: %w", program, err)
		}
		if ended > 0 {
			return nil
		}
		if err := traffic.Wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("the %s has no session at the database", program)
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

func (r *running) database() string { return r.DatabaseURL }

func (r *running) losses() (lost []string, all int) { return nil, 0 }

func (r *running) introduction() string { return "" }

func (r *running) close(ctx context.Context) error { return r.sessions.Close(ctx) }

// newSeed is small enough to be typed.
func newSeed() uint64 { return 1 + mathrand.Uint64N(1<<32) } //nolint:gosec // a seed is no secret

// newRunName is short: with a number behind it, it has too few digits for a card number.
func newRunName() string { return strings.ToLower(rand.Text()[:8]) }

// newWebhookSecret is a secret in the form of Standard Webhooks.
func newWebhookSecret() string {
	return "whsec_" + base64.StdEncoding.EncodeToString([]byte(rand.Text()))
}
