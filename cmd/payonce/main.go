// Command payonce is the operator's tool. payonce --help lists its commands.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"reflect"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/mattn/go-isatty"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/robustness/demo"
	"github.com/payonce/payonce/internal/stripe"
)

type commands struct {
	Demo        demoCmd        `cmd:"" help:"Run payonce on this machine: charges under duplicates, faults and kills, then the audit."`
	Console     consoleCmd     `cmd:"" help:"Serve the web console: the running service, the history of each charge, dead letters. Its settings are in the environment."`
	Migrate     migrateCmd     `cmd:"" help:"Apply the migrations that the database does not have yet. May be repeated."`
	Seed        seedCmd        `cmd:"" help:"Register a merchant, its API key and its stock. May be repeated."`
	Stock       stockCmd       `cmd:"" help:"List what is in stock, and add to it."`
	Keys        keysCmd        `cmd:"" help:"Make, list and revoke API keys."`
	Audit       auditCmd       `cmd:"" help:"Check every invariant against the tables, and the ledger against the provider."`
	Inbox       inboxCmd       `cmd:"" help:"List, retry and discard dead letters."`
	Outbox      outboxCmd      `cmd:"" help:"Make the outbox readable after a restore from a dump."`
	Pause       pauseCmd       `cmd:"" help:"Stop carrying out charges, sending webhooks, or all work for a merchant, until resume. What is accepted waits. Without arguments, list what is paused."`
	Resume      resumeCmd      `cmd:"" help:"End a pause."`
	Webhooks    webhooksCmd    `cmd:"" help:"Rotate webhook secrets, and resend webhooks."`
	Actions     actionsCmd     `cmd:"" help:"List what operators did: who, what, when, and the values before and after. The newest first."`
	Rebuild     rebuildCmd     `cmd:"" help:"Count the balances of all merchants anew from the ledger, under traffic, and replace those that differ."`
	Timeline    timelineCmd    `cmd:"" help:"Print everything that is recorded about a charge, in order of time."`
	Healthcheck healthcheckCmd `cmd:"" help:"Exit with 0 if a URL answers 200."`

	Version kong.VersionFlag `help:"Print the version and the commit, and exit."`
}

// databaseCommand is a command on the database. It leaves errors of the console to main.
type databaseCommand interface {
	run(ctx context.Context, c *console, db *postgres.DB) error
}

// checkedCommand refuses wrong arguments and wrong values in the environment that stand for them.
type checkedCommand interface{ check() error }

// tunedCommand opens the database in a way of its own.
type tunedCommand interface{ options() postgres.Options }

// reader is part of a command that also runs on a hot standby.
type reader struct{}

func (reader) options() postgres.Options { return postgres.Options{AllowReadOnly: true} }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	var cli commands
	parsed, err := commandLine(&cli, os.Args[1:], kong.BindTo(ctx, (*context.Context)(nil)))
	if err != nil {
		fmt.Fprintf(os.Stderr, "payonce: %s (payonce --help lists the commands and their flags)\n", err)
		os.Exit(2)
	}
	if c, ok := reflect.TypeAssert[databaseCommand](parsed.Selected().Target.Addr()); ok {
		err = onDatabase(ctx, c)
	} else {
		err = parsed.Run()
	}
	stop()
	if err != nil && !errors.Is(err, errFound) {
		fmt.Fprintln(os.Stderr, "payonce: "+err.Error())
	}
	if err != nil {
		os.Exit(1)
	}
}

// commandLine reads a command line. Its errors are the caller's mistakes.
func commandLine(cli *commands, args []string, options ...kong.Option) (*kong.Context, error) {
	parsed, err := kong.Must(cli, append(options,
		kong.Name("payonce"),
		kong.Description("An event-sourced payment service in which every charge takes effect exactly once."),
		kong.Vars{"version": program.Version("payonce")})...).Parse(args)
	if err != nil {
		return nil, cmp.Or(refuseGone(args), err)
	}
	if c, ok := reflect.TypeAssert[checkedCommand](parsed.Selected().Target.Addr()); ok {
		err = c.check()
	}
	return parsed, err
}

// errFound ends the program with exit code 1 and without another word: what the command has found is
// printed.
var errFound = errors.New("there are findings")

// environment is what every command that reads the database needs.
type environment struct {
	// Connection string of payonce's PostgreSQL database, as the owner of its tables. Every
	// command reads it but demo and healthcheck.
	DatabaseURL program.Secret `env:"DATABASE_URL,required,notEmpty"`
	// Permits a database over a network without TLS that verifies the server.
	AllowPlaintext bool `env:"ALLOW_PLAINTEXT"`
}

// onDatabase runs a command on the database of the environment.
func onDatabase(ctx context.Context, command databaseCommand) error {
	env, err := program.Load[environment](program.Environ())
	if err != nil {
		return err
	}
	var o postgres.Options
	if c, ok := command.(tunedCommand); ok {
		o = c.options()
	}
	db, err := env.open(ctx, o)
	if err != nil {
		return err
	}
	defer db.Close()
	c := newConsole(os.Stdout, os.Stderr)
	err = runOn(ctx, c, db, command)
	if c.stdout.err != nil {
		return fmt.Errorf("print the result: %w", c.stdout.err)
	}
	return err
}

// runOn runs a command on a database that has every migration, unless it is the one that brings them.
func runOn(ctx context.Context, c *console, db *postgres.DB, command databaseCommand) error {
	switch command.(type) {
	case migrateCmd, *migrateCmd:
	default:
		if err := program.Migrated(ctx, db); err != nil {
			return err
		}
	}
	return command.run(ctx, c, db)
}

// open opens the database as the owner of the tables. Row security hides rows from another
// user, and an audit of nothing finds nothing: so with row_security off a statement that
// would hide rows is refused. A command runs each of its statements once, on large tables, so each
// is planned for its own arguments, and may take until the operator ends it.
func (e environment) open(ctx context.Context, o postgres.Options) (*postgres.DB, error) {
	o.AllowPlaintext = e.AllowPlaintext
	o.Application, o.MaxConns, o.StatementTimeout = "payonce-cli", 4, 6*time.Hour
	settings := map[string]string{"row_security": "off", "plan_cache_mode": "auto", "payonce.actor": operator()}
	maps.Copy(settings, o.Settings)
	o.Settings = settings
	return postgres.Open(ctx, e.DatabaseURL.Reveal(), o)
}

// withProvider runs with a client of the provider, or nil where STRIPE_SECRET_KEY is not set.
func withProvider(run func(client *stripe.Client) error) error {
	account, err := program.Load[struct {
		// Secret key of the Stripe account, for audit and timeline. Empty: they do not ask the
		// provider.
		SecretKey program.Secret `env:"STRIPE_SECRET_KEY"`
		// Scheme, host and port of the provider's API. Empty: https://api.stripe.com.
		APIBase string `env:"STRIPE_API_BASE"`
		// Id of the Stripe account of STRIPE_SECRET_KEY, for a restricted key that may not read it.
		Account string `env:"STRIPE_ACCOUNT"`
	}](program.Environ())
	if err != nil {
		return err
	}
	if account.SecretKey == "" {
		return run(nil)
	}
	client, err := stripe.New(stripe.Config{SecretKey: account.SecretKey.Reveal(), Base: account.APIBase, Account: account.Account})
	if err != nil {
		return err
	}
	defer client.Close()
	return run(client)
}

type demoCmd struct {
	Charges  int    `default:"200" help:"How many charges to make."`
	Seed     uint64 `default:"0" help:"Repeat the run with this seed; 0 draws one."`
	Keep     bool   `help:"Keep the services running after the audit, and print their URLs and the API key, until Ctrl-C."`
	JSON     bool   `name:"json" help:"Print the audit as JSON on stdout and everything else on stderr."`
	Database string `placeholder:"URL" help:"Use this PostgreSQL server, in databases that the demo creates."`
	Break    string `placeholder:"GUARD" help:"Instead, remove one guard from the database of a throw-away server, and show which checks of the audit are then violated, and what happens to a charge. list lists the guards, all removes each in turn, none removes none."`
	Running  bool   `help:"Use services that run already: set API_URLS, SANDBOX_URL, API_KEY, DATABASE_URL, STRIPE_SECRET_KEY and STRIPE_API_BASE."`
}

func (c *demoCmd) check() error {
	if c.Break != "" && (c.Running || c.Keep || c.Database != "") {
		return errors.New("--break runs on a throw-away server: leave out --database, --running and --keep")
	}
	return nil
}

// Run plays the demo. It ignores DATABASE_URL unless the services run already,
// so that a developer's own database is never touched.
func (c *demoCmd) Run(ctx context.Context) error {
	o := demo.Options{
		Charges:  c.Charges,
		Seed:     c.Seed,
		Keep:     c.Keep,
		JSON:     c.JSON,
		Database: c.Database,
		Stdout:   os.Stdout,
		Stderr:   os.Stderr,
		Lab:      &demo.Lab{},
		Commands: os.Stdin,
		Live:     isatty.IsTerminal(os.Stdout.Fd()) && isatty.IsTerminal(os.Stderr.Fd()),
		Now:      time.Now,
	}
	if c.Break != "" {
		return demo.Break(ctx, o, c.Break)
	}
	if c.Running {
		running, err := program.Load[demo.Running](program.Environ())
		if err != nil {
			return err
		}
		o.Running, o.ConsoleURL = &running, running.ConsoleURL
	} else if err := serveDemo(ctx, &o); err != nil {
		return err
	}
	return demo.Run(ctx, o)
}

type healthcheckCmd struct {
	URL string `arg:"" help:"URL to request, for example http://127.0.0.1:8080/readyz."`
}

const healthcheckTimeout = 2 * time.Second

// Run is for images without a shell.
func (h healthcheckCmd) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthcheckTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.URL, http.NoBody)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("healthcheck: %s answered %s", h.URL, response.Status)
	}
	return nil
}
