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

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
)

// stage is what the demo runs on: its own programs, or services that run already.
type stage struct {
	*merchant

	database string         // URL of the service's database
	world    *harness.World // nil if the programs are not the demo's
	killed   string         // what a kill is here, for the report

	// kill kills one of the two workers or apis and starts it again.
	kill func(ctx context.Context, program string, which int) error
	// restart restarts the database's server without a shutdown, or returns errNotRun.
	restart func(ctx context.Context) error
	audit   func(ctx context.Context) (harness.Audit, error)
	// close stops everything and removes what was made.
	close func(ctx context.Context) error
}

// errNotRun says that a part of the demo is not possible on this stage.
var errNotRun = errors.New("not run")

// own is two apis, two workers and a sandbox as child processes, and a database.
type own struct {
	harness.World

	folder   *local.Dir // of the programs and their logs
	database *database
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

// openStage opens a stage of the demo's own.
func openStage(ctx context.Context, o Options, stock map[string]int) (*stage, error) {
	s, err := openOwn(ctx, o, stock)
	if err != nil {
		return nil, err
	}
	return &stage{
		merchant: &merchant{Client: s.Client(), sandbox: harness.Sandbox(s.Sandbox.URL())},
		database: s.Service, world: &s.World, killed: "killed",
		kill: s.kill, restart: s.restart, audit: s.Audit, close: s.close,
	}, nil
}

func openOwn(ctx context.Context, o Options, stock map[string]int) (s *own, err error) {
	s = &own{World: harness.World{Secrets: harness.Secrets{
		API:      "sk_test_" + rand.Text(),
		Provider: "sk_test_demo",
		Events:   newWebhookSecret(),
		Shop:     newWebhookSecret(),
	}}}
	if o.Keep {
		s.Secrets.API = visitorsKey
	}
	defer func() {
		if err != nil {
			ctx, cancel := closing(ctx)
			defer cancel()
			err = errors.Join(err, s.close(ctx))
		}
	}()
	if s.folder, err = local.NewDir(os.TempDir(), "payonce-demo-"); err != nil {
		return s, err
	}
	s.Log = s.folder.Path
	if o.programs != nil {
		s.Binaries = *o.programs
	} else if s.Binaries, err = o.build(ctx, s.Log); err != nil {
		return s, err
	}
	if o.Database == "" {
		o.say("starting PostgreSQL")
	} else {
		o.say("making a database on the server given")
	}
	if s.database, err = openDatabase(ctx, o.Database, o.programs != nil); err != nil {
		return s, err
	}
	s.Service = s.database.url
	o.say("starting 2 apis, 2 workers and the sandbox")
	return s, s.start(ctx, o.Keep, stock)
}

func (o Options) build(ctx context.Context, folder string) (harness.Binaries, error) {
	o.say("building api, worker, sandbox and payonce")
	return harness.Build(ctx, folder)
}

// start starts the programs in the order in which they need one another's addresses.
func (s *own) start(ctx context.Context, visited bool, stock map[string]int) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if _, err := s.Run(ctx, "migrate"); err != nil {
		return err
	}
	var err error
	s.APIs, err = s.StartAll(ctx, "api", s.API, programsOfKind, func(i int) map[string]string {
		env := s.APIEnv()
		if i == 0 && visited && isFree(ctx, visitorsAddress) {
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
	for _, sku := range slices.Sorted(maps.Keys(stock)) {
		seed = append(seed, "--sku", fmt.Sprintf("%s=%d", sku, stock[sku]))
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
	if err := harness.Wait(ctx, killPause); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return p.Restart(ctx)
}

func (s *own) restart(ctx context.Context) error {
	s.striking.Lock()
	defer s.striking.Unlock()
	return s.database.restart(ctx)
}

// close drains the programs, then removes the database and the folder.
func (s *own) close(ctx context.Context) error {
	err := s.Stop(ctx)
	if s.database != nil {
		err = errors.Join(err, s.database.close(ctx))
	}
	if s.folder != nil {
		err = errors.Join(err, s.folder.Close())
	}
	return err
}

// introduction is what a visitor needs to look around.
func (s *stage) introduction() string {
	var text strings.Builder
	line := func(name, value string) { fmt.Fprintf(&text, "  %-10s %s\n", name, value) }
	for _, p := range s.world.Processes() {
		line(p.Name(), p.URL())
	}
	line("contract", s.world.APIs[0].URL()+"/openapi.yaml")
	line("books", s.world.Sandbox.URL()+"/books")
	line("database", s.database)
	line("logs", s.world.Log)
	line("API key", s.world.Secrets.API)
	return text.String() + "everything stays up until Ctrl-C"
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

const cutSessions = `
select count(*) filter (where pg_terminate_backend(pid)) > 0
  from pg_stat_activity
 where application_name like 'payonce-' || $1 || ' %'
   and datname = current_database()`

// openRunning opens a stage of services that run already.
func openRunning(ctx context.Context, at Running) (*stage, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	sessions, err := pgx.Connect(ctx, at.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("connect to the services' database: %w", err)
	}
	env := map[string]string{"DATABASE_URL": at.DatabaseURL, "STRIPE_SECRET_KEY": at.ProviderKey, "STRIPE_API_BASE": at.ProviderURL}
	return &stage{
		merchant: &merchant{Client: harness.NewClient(at.APIKey, at.APIURLs...), sandbox: harness.Sandbox(at.SandboxURL)},
		database: at.DatabaseURL, killed: "cut off the database",
		kill: func(ctx context.Context, program string, _ int) error {
			// A program that was cut just now has no session for a while.
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return await(ctx, sessions, cutSessions, program)
		},
		restart: func(context.Context) error { return errNotRun },
		audit: func(ctx context.Context) (harness.Audit, error) {
			return harness.ReadAudit(harness.Run(ctx, env, self, "audit", "--json"))
		},
		close: sessions.Close,
	}, nil
}

// newSeed is small enough to be typed.
func newSeed() uint64 { return 1 + mathrand.Uint64N(1<<32) } //nolint:gosec // a seed is no secret

// newRunName is short: with a number behind it, it has too few digits for a card number.
func newRunName() string { return strings.ToLower(rand.Text()[:8]) }

// newWebhookSecret is a secret in the form of Standard Webhooks.
func newWebhookSecret() string {
	return "whsec_" + base64.StdEncoding.EncodeToString([]byte(rand.Text()))
}
