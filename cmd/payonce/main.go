// Command payonce is the operator's tool: the demo, migrations, seeding, the
// audit.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/stripe"
)

type commands struct {
	Demo        demoCmd        `cmd:"" help:"Show it: charges under duplicates, faults and kills, then the audit."`
	Migrate     migrateCmd     `cmd:"" help:"Bring the database to this version's schema."`
	Seed        seedCmd        `cmd:"" help:"Register a merchant, its API key and its stock. May be repeated."`
	Keys        keysCmd        `cmd:"" help:"Make, list and revoke API keys."`
	Audit       auditCmd       `cmd:"" help:"Check every promise against the tables and the provider."`
	Inbox       inboxCmd       `cmd:"" help:"Look at parked messages, and decide what becomes of them."`
	Outbox      outboxCmd      `cmd:"" help:"Let readers go on after a restore from a dump."`
	Webhooks    webhooksCmd    `cmd:"" help:"Replace webhook secrets, and deliver webhooks once more."`
	Rebuild     rebuildCmd     `cmd:"" help:"Make the list of charges and the balances anew from the ledger, while traffic flows."`
	Timeline    timelineCmd    `cmd:"" help:"Tell everything that happened to a charge."`
	Healthcheck healthcheckCmd `cmd:"" help:"Exit with 0 if a URL answers 200."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	var cli commands
	run := kong.Parse(&cli,
		kong.Name("payonce"),
		kong.Description("An event-sourced payment service in which every charge takes effect exactly once."),
		kong.UsageOnError(),
		kong.BindTo(ctx, (*context.Context)(nil)))
	err := run.Run()
	stop()
	var code exitError
	switch {
	case err == nil:
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		fmt.Fprintln(os.Stderr, "payonce: "+err.Error())
		os.Exit(1)
	}
}

// exitError ends the program without another word: what there is to say has been
// printed.
type exitError int

func (c exitError) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// environment is what every command that reads the database needs.
type environment struct {
	DatabaseURL    program.Secret `env:"DATABASE_URL,required,notEmpty"`
	AllowPlaintext bool           `env:"ALLOW_PLAINTEXT"`
}

// withDB runs a command on the database of the environment.
func withDB(ctx context.Context, o postgres.Options, run func(db *postgres.DB) error) error {
	env, err := program.Load[environment]()
	if err != nil {
		return err
	}
	db, err := env.open(ctx, o)
	if err != nil {
		return err
	}
	defer db.Close()
	return run(db)
}

// open opens the database as the owner of the tables. Row security hides rows from another
// user, and an audit of nothing finds nothing: so with row_security off a statement that
// would hide rows is refused. A command runs each of its statements once, on large tables,
// so each is planned for its own arguments.
func (e environment) open(ctx context.Context, o postgres.Options) (*postgres.DB, error) {
	o.AllowPlaintext = e.AllowPlaintext
	o.Application, o.MaxConns = cmp.Or(o.Application, "payonce"), cmp.Or(o.MaxConns, 4)
	settings := map[string]string{"row_security": "off", "plan_cache_mode": "auto"}
	maps.Copy(settings, o.Settings)
	o.Settings = settings
	return postgres.Open(ctx, e.DatabaseURL.Reveal(), o)
}

// newProvider returns a client of the provider, or nil where STRIPE_SECRET_KEY is not set.
func newProvider() (*stripe.Client, error) {
	account, err := program.Load[struct {
		SecretKey program.Secret `env:"STRIPE_SECRET_KEY"`
		APIBase   string         `env:"STRIPE_API_BASE"`
	}]()
	if err != nil || account.SecretKey == "" {
		return nil, err
	}
	return stripe.New(stripe.Config{SecretKey: account.SecretKey.Reveal(), Base: account.APIBase})
}
