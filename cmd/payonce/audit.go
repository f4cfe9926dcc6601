package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/config"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
)

type auditCmd struct {
	JSON       bool `name:"json" xor:"form" help:"Print the report as JSON."`
	Quiet      bool `xor:"form" help:"Print a line per violation, and nothing where every promise holds: for cron."`
	NoProvider bool `help:"Leave the provider out, and say nothing about it."`
}

// provider is the account to reconcile with; none where the key is empty.
type provider struct {
	SecretKey config.Secret `env:"STRIPE_SECRET_KEY"`
	APIBase   string        `env:"STRIPE_API_BASE"`
}

// An audit reads whole tables, so each of its statements may take longer than
// traffic's.
const auditStatementTimeout = 10 * time.Minute

// violated is the exit code of an audit that found something.
const violated exitError = 1

// Run prints the report on stdout. It exits with 1 if a promise is violated, or
// if the audit could not be finished. Where only the provider does not answer,
// people still see what our own tables show. That the provider was not asked is
// said on stderr, also by --quiet: a cron job that has lost its settings must not
// look like one that found nothing.
func (c auditCmd) Run(ctx context.Context) error {
	env, err := config.Load[environment]()
	if err != nil {
		return err
	}
	account, err := config.Load[provider]()
	if err != nil {
		return err
	}
	db, err := env.open(ctx, postgres.Options{
		AllowReadOnly: true, // a hot standby answers too
		Application:   "payonce-audit", MaxConns: 1, StatementTimeout: auditStatementTimeout,
	})
	if err != nil {
		return err
	}
	defer db.Close()
	report, err := audit.Run(ctx, db)
	if err != nil {
		return err
	}
	results := &pgx.Batch{}
	audit.Record(results, audit.ScopeTables, report.Checks...)
	var unfinished error
	switch {
	case c.NoProvider:
	case account.SecretKey == "":
		fmt.Fprintln(os.Stderr, "not run: the reconciliation with the provider, for STRIPE_SECRET_KEY is not set")
	default:
		ours := len(report.Checks)
		if unfinished = reconcile(ctx, db, account, &report); unfinished == nil {
			audit.Record(results, audit.ScopeProvider, report.Checks[ours:]...)
		}
	}
	if err := db.Commit(ctx, results); err != nil {
		// Whoever audits a copy that cannot be written to still wants the report.
		fmt.Fprintln(os.Stderr, "not kept: the result, which the metrics should show:", err)
	}
	if unfinished != nil && c.JSON {
		return unfinished // a program must not take half a report for one that found nothing
	}
	if err := errors.Join(c.print(os.Stdout, report), unfinished); err != nil {
		return err
	}
	if !report.OK {
		return violated
	}
	return nil
}

func (c auditCmd) print(w io.Writer, report audit.Report) error {
	switch {
	case c.JSON:
		return printJSON(w, report)
	case c.Quiet:
		return printViolations(w, report)
	}
	return report.WriteTable(w)
}

// printViolations prints a line per violation. A report holds but the first few
// of a check; how many more there are is a line too.
func printViolations(w io.Writer, report audit.Report) error {
	for _, c := range report.Checks {
		lines := c.Examples
		if more := c.Violated - int64(len(lines)); more > 0 {
			lines = append(slices.Clone(lines), fmt.Sprintf("and %d more of %d", more, c.Checked))
		}
		for _, line := range lines {
			if _, err := fmt.Fprintf(w, "%s: %s\n", c.Name, oneLine(line)); err != nil {
				return fmt.Errorf("print a violation: %w", err)
			}
		}
	}
	return nil
}

func reconcile(ctx context.Context, db *postgres.DB, account provider, report *audit.Report) error {
	client, err := stripe.New(stripe.Config{SecretKey: account.SecretKey.Reveal(), Base: account.APIBase})
	if err != nil {
		return err
	}
	defer client.Close()
	checks, err := audit.Reconcile(ctx, db,
		translate(client.Intents(ctx), func(in stripe.Intent) audit.Intent {
			return audit.Intent{
				ID: in.ID, Reference: in.Reference, Status: string(in.Status),
				Amount: in.Amount, AmountReceived: in.AmountReceived, Currency: in.Currency,
			}
		}),
		translate(client.Refunds(ctx), func(r stripe.Refund) audit.Refund {
			return audit.Refund{
				ID: r.ID, Reference: r.Reference, PaymentIntent: r.PaymentIntent, Status: r.Status,
				Amount: r.Amount, Currency: r.Currency,
			}
		}))
	if err != nil {
		return err
	}
	report.Add(checks...)
	return nil
}

// translate turns a list of the provider's into the audit's.
func translate[S, T any](list iter.Seq2[S, error], to func(S) T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for s, err := range list {
			if !yield(to(s), err) {
				return
			}
		}
	}
}
