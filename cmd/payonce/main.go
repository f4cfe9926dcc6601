// Command payonce is the operator's tool. payonce --help lists its commands.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/stripe"
)

// commands are all commands. A field's method Run takes what it needs of what newParser binds, and
// its method AfterApply refuses a wrong command line.
type commands struct {
	Demo demoCmd `cmd:"" group:"Try it" help:"Run payonce here: charges under faults, then the audit. Programs are killed, requests and events duplicated, and calls of the provider fail." example:"demo --charges 50"`

	Migrate  migrateCmd  `cmd:"" group:"Set up" help:"Apply the migrations that the database lacks." example:"migrate" progress:"migrating"`
	Seed     seedCmd     `cmd:"" group:"Set up" help:"Register a merchant, its API key and its stock. May be repeated." example:"seed --merchant acme --sku mug=50"`
	Keys     keysCmd     `cmd:"" group:"Set up" help:"Make, list and revoke API keys."`
	Webhooks webhooksCmd `cmd:"" group:"Set up" help:"Rotate webhook secrets, and resend webhooks."`
	Stock    stockCmd    `cmd:"" group:"Set up" help:"List what is in stock, and add to it."`

	Audit    auditCmd    `cmd:"" group:"See" help:"Check every promise in the tables and at the provider. The ledger is compared with the provider's lists where STRIPE_SECRET_KEY is set." example:"audit --quiet" progress:"auditing"`
	Timeline timelineCmd `cmd:"" group:"See" help:"Print everything that is recorded about a charge. It is in the order of time." example:"timeline ch_01a1fd336ed47bf6827f5db90a1e2454"`
	Actions  actionsCmd  `cmd:"" group:"See" help:"List what operators did, the newest first. A row says who, what, when, and the values before and after." example:"actions --merchant acme --limit 3"`
	Console  consoleCmd  `cmd:"" group:"See" help:"Serve the web console. It shows the running service, the history of each charge and dead letters. Its settings are in the environment." example:"console"`

	Inbox   inboxCmd   `cmd:"" group:"Act" help:"List, retry and discard dead letters."`
	Pause   pauseCmd   `cmd:"" group:"Act" help:"Pause charges, webhooks or a merchant, until resume. What is accepted waits. Without arguments, list what is paused." example:"pause merchant acme --reason 'fraud alert'"`
	Resume  pauseCmd   `cmd:"" group:"Act" help:"End a pause." example:"resume merchant acme"`
	Rebuild rebuildCmd `cmd:"" group:"Act" help:"Count all balances anew, and replace what differs. It reads the whole ledger, under traffic." example:"rebuild" progress:"counting the ledger"`
	Outbox  outboxCmd  `cmd:"" group:"Act" help:"Continue after a restore from a dump."`

	Healthcheck healthcheckCmd `cmd:"" group:"In an image" help:"Exit with 0 if a URL answers 200." example:"healthcheck http://127.0.0.1:8080/readyz"`

	JSON    bool             `name:"json" help:"Print the result as JSON, for programs."`
	Version kong.VersionFlag `help:"Print the version and the commit, and exit."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], postgres.Options{})
	stop()
	os.Exit(code)
}

// errFound is the error of a command that has printed what it has found.
var errFound = errors.New("there are findings")

// run runs a command line with the variables of the process, on a database that o opens, and
// returns the exit code: 0; 1 for an error and for findings; 2 for a wrong command line.
func run(ctx context.Context, args []string, o postgres.Options) int {
	o.Settings = map[string]string{"row_security": "off", "plan_cache_mode": "auto", "payonce.actor": operator()}
	cli, c := &commands{}, &console{stdout: os.Stdout, stderr: os.Stderr}
	var db *postgres.DB
	open := func(selected *kong.Context) (_ *postgres.DB, err error) {
		db, err = openDatabase(ctx, o, selected.Selected().Name)
		return db, err
	}
	parsed, err := newParser(cli, kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(cli, c, &o), kong.BindToProvider(open),
		kong.BindToProvider(newProvider)).Parse(args)
	if err != nil {
		c.remark("payonce: %s (payonce --help lists the commands and their flags)\n", cmp.Or(refuseGone(args), err))
		return 2
	}
	c.json = cli.JSON
	if what := parsed.Selected().Tag.Get("progress"); what != "" && !cli.JSON && !cli.Audit.Quiet {
		defer time.AfterFunc(2*time.Second, func() { c.remark("%s\n", what) }).Stop()
	}
	err = parsed.Run()
	if db != nil {
		db.Close()
	}
	if c.err != nil {
		err = fmt.Errorf("print the result: %w", c.err)
	}
	switch {
	case err == nil:
		return 0
	case !errors.Is(err, errFound):
		c.remark("payonce: %s\n", err)
	}
	return 1
}

// environment is what every command that reads the database needs.
type environment struct {
	// Connection string of payonce's PostgreSQL database, as the owner of its tables; for payonce
	// console as a member of the role payonce_console. Every command reads it but demo and healthcheck.
	DatabaseURL program.Secret `env:"DATABASE_URL,required,notEmpty"`
	// Permits a database over a network without TLS that verifies the server.
	AllowPlaintext bool `env:"ALLOW_PLAINTEXT"`
}

// openDatabase opens the database as the owner of the tables. Row security hides rows from another
// user, and an audit of nothing finds nothing: so with row_security off a statement that
// would hide rows is refused. A command runs each of its statements once, on large tables, so each
// is planned for its own arguments, and may take until the operator ends it. An audit and a timeline
// permit a hot standby, and only migrate a database that lacks a migration.
func openDatabase(ctx context.Context, o postgres.Options, command string) (*postgres.DB, error) {
	env, err := program.Load[environment](program.Environ())
	if err != nil {
		return nil, err
	}
	o.AllowPlaintext, o.Application, o.MaxConns, o.StatementTimeout = env.AllowPlaintext, "payonce-cli", 4, 6*time.Hour
	o.AllowReadOnly = command == "audit" || command == "timeline"
	db, err := postgres.Open(ctx, env.DatabaseURL.Reveal(), o)
	if err == nil && command != "migrate" {
		if err = program.Migrated(ctx, db); err != nil {
			db.Close()
		}
	}
	return db, err
}

// newProvider returns a client of the provider, or nil where STRIPE_SECRET_KEY is not set.
func newProvider() (*stripe.Client, error) {
	account, err := program.Load[struct {
		// Secret key of the Stripe account, for audit and timeline. Empty: they do not ask the
		// provider.
		SecretKey program.Secret `env:"STRIPE_SECRET_KEY"`
		// Scheme, host and port of the provider's API. Empty: https://api.stripe.com.
		APIBase string `env:"STRIPE_API_BASE"`
		// Id of the Stripe account of STRIPE_SECRET_KEY, for a restricted key that may not read it.
		Account string `env:"STRIPE_ACCOUNT"`
	}](program.Environ())
	if err != nil || account.SecretKey == "" {
		return nil, err
	}
	return stripe.New(stripe.Config{SecretKey: account.SecretKey.Reveal(), Base: account.APIBase, Account: account.Account})
}

type healthcheckCmd struct {
	URL string `arg:"" help:"URL to request, for example http://127.0.0.1:8080/readyz."`
}

const healthcheckTimeout = 2 * time.Second

// Run is for images without a shell. People see an error alone.
func (h healthcheckCmd) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthcheckTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, h.URL, http.NoBody)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	response, err := http.DefaultTransport.RoundTrip(request) // a redirect is no 200
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("healthcheck: %s answered %s", h.URL, response.Status)
	}
	return nil
}
