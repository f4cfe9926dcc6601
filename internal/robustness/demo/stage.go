package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
)

// stage is what a demo runs on: two apis, two workers and a sandbox of its own with a database, or
// services that run already.
type stage struct {
	*merchant

	world  harness.World // without programs, if they run already
	db     *pgxpool.Pool // the service's database
	killed string        // what a kill is here, for the report

	server *local.Server                 // nil if it is another's
	ends   []func(context.Context) error // which close calls, the last one first
}

// errNotRun says that a part of the demo is not possible on this stage.
var errNotRun = errors.New("not run")

// The address and the API key for visitors are those of the README. Another address is taken where
// this one is in use.
const (
	visitorsAddress = "127.0.0.1:8080"
	visitorsKey     = "sk_test_demo"
)

const (
	startTimeout   = 2 * time.Minute        // a program that ends is noticed at once
	killPause      = 150 * time.Millisecond // as a supervisor needs
	programsOfKind = 2
)

// openStage opens a stage with this stock.
func openStage(ctx context.Context, o Options, stock ...string) (s *stage, err error) {
	s = &stage{killed: "killed", world: harness.World{Secrets: harness.Secrets{
		API:      "sk_test_" + rand.Text(),
		Provider: "sk_test_demo",
		Events:   "whsec_" + rand.Text(),
		Shop:     "whsec_" + rand.Text() + rand.Text(), // two are base64
	}}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	if o.Running != nil {
		return s, s.join(ctx, *o.Running)
	}
	folder, err := local.NewDir(os.TempDir(), "payonce-demo-")
	if err != nil {
		return s, err
	}
	s.ends = append(s.ends, func(context.Context) error { return folder.Close() })
	s.world.Log = folder.Path
	if o.programs != nil {
		s.world.Binaries = *o.programs
	} else if s.world.Binaries, err = o.build(ctx, folder.Path); err != nil {
		return s, err
	}
	if err := s.openDatabase(ctx, o); err != nil {
		return s, err
	}
	o.say("starting 2 apis, 2 workers and the sandbox")
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	setup := harness.Setup{APIs: programsOfKind, Workers: programsOfKind, Merchant: "demo", Stock: stock, Events: true}
	if o.Keep {
		s.world.Secrets.API = visitorsKey
		s.world.Env = func(name string, env map[string]string) {
			if name == "api-1" && isFree(ctx, visitorsAddress) {
				env["HTTP_ADDR"] = visitorsAddress
			}
		}
	}
	s.ends = append(s.ends, s.world.Stop)
	if err := s.world.Up(ctx, setup); err != nil {
		return s, err
	}
	s.merchant = &merchant{Client: s.world.Client(), sandbox: harness.Sandbox(s.world.Sandbox.URL())}
	return s, nil
}

// close drains the programs, then removes the database and the folder, also when ctx has ended.
func (s *stage) close(ctx context.Context) (err error) {
	ctx, cancel := closing(ctx)
	defer cancel()
	for _, end := range slices.Backward(s.ends) {
		err = errors.Join(err, end(ctx))
	}
	return err
}

func (o Options) build(ctx context.Context, folder string) (harness.Binaries, error) {
	o.say("building api, worker, sandbox and payonce")
	return harness.Build(ctx, folder)
}

// openDatabase makes a database on the server given, or on one that it starts: with every commit
// forced to disk, as the programs demand, or in memory for the guard lab.
func (s *stage) openDatabase(ctx context.Context, o Options) (err error) {
	name, server := "payonce_demo_payonce_"+newRunName(), o.Database
	if server == "" {
		o.say("starting PostgreSQL")
		if s.server, err = local.Start(ctx, local.Options{Fsync: true, InMemory: o.programs != nil}); err != nil {
			return err
		}
		s.ends = append(s.ends, func(context.Context) error { return s.server.Close() }) //nolint:contextcheck // Close bounds itself
		server = s.server.URL("postgres")
	} else {
		o.say("making a database on the server given")
		s.ends = append(s.ends, func(ctx context.Context) error {
			return execute(ctx, server, "drop database if exists "+name+" with (force)")
		})
	}
	if s.world.Service, err = inDatabase(server, name); err != nil {
		return err
	}
	if err := execute(ctx, server, "create database "+name); err != nil {
		return err
	}
	return s.openPool(ctx)
}

// execute runs a statement by a connection of its own.
func execute(ctx context.Context, server, statement string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("connect to the demo's server: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, statement)
	return err
}

func (s *stage) openPool(ctx context.Context) (err error) {
	if s.db, err = pgxpool.New(ctx, s.world.Service); err == nil {
		s.ends = append(s.ends, func(context.Context) error { s.db.Close(); return nil })
	}
	return err
}

// inDatabase is the same server's URL with another database.
func inDatabase(server, name string) (string, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return "", errors.New("--database must be a URL as postgres://user@host") // not what it is: that may hold a password
	}
	u.Path = "/" + name
	query := u.Query()
	query.Del("dbname")
	u.RawQuery = query.Encode()
	return u.String(), nil
}

func isFree(ctx context.Context, address string) bool {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	return err == nil && listener.Close() == nil
}

// await waits until a query returns true.
func await(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any,
) error {
	for {
		var yes bool
		if err := db.QueryRow(ctx, sql, args...).Scan(&yes); err != nil || yes {
			return err
		}
		if err := harness.Wait(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("wait for %s %v: %w", sql, args, err)
		}
	}
}

const isQuiet = `
select not exists (select from inbox where status in ('pending', 'running') and (waits = 0 or $1))
   and not exists (select from outbox)
   and not exists (
         select
           from ledger_events e
           join followers f
             on f.name = 'balances'
          where (e.txid, e.position) > (f.txid, f.position))`

// quiet waits until nothing is left to do, with or without what waits for an external service.
func (s *stage) quiet(ctx context.Context, waiting bool) error {
	return await(ctx, s.db, isQuiet, waiting)
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
	line("database", s.world.Service)
	line("logs", s.world.Log)
	line("API key", s.world.Secrets.API)
	return text.String() + "everything stays up until Ctrl-C"
}

// newSeed is small enough to be typed.
func newSeed() uint64 { return 1 + mathrand.Uint64N(1<<32) } //nolint:gosec // a seed is no secret

// newRunName is short: with a number behind it, it has too few digits for a card number.
func newRunName() string { return strings.ToLower(rand.Text()[:8]) }

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
