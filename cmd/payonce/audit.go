package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/ledger"
)

type auditCmd struct {
	reader

	JSON       bool `name:"json" xor:"form" help:"Print the report as JSON."`
	Quiet      bool `xor:"form" help:"Print one line per violation, and nothing if there is none: for cron."`
	NoProvider bool `xor:"provider" help:"Do not compare the ledger with the provider, and do not warn about that."`
	Repair     bool `xor:"provider" help:"Let the workers read from the provider what it lists of refunds and disputes and the ledger has otherwise, as the provider's events that were lost would have done."`
}

// run exits with 1 if a promise is violated, or if the audit could not be finished. Where only
// the provider does not answer, people still see what our own tables show. That the provider
// was not asked is said on stderr, also by --quiet: a cron job that has lost its settings must
// not look like one that found nothing.
func (a auditCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	if a.Quiet {
		c.every = math.MaxInt64 // cron mails what is printed
	}
	return withProvider(func(client *stripe.Client) error {
		before, err := audit.ReadProgress(ctx, db)
		if err != nil {
			return err
		}
		_, end := c.progress("auditing")
		report, err := audit.Run(ctx, db)
		end()
		if err != nil {
			return err
		}
		results := &pgx.Batch{}
		audit.Record(results, audit.ScopeTables, report.Checks...)
		before.MarkSuperseded(results)
		var unfinished error
		switch {
		case a.NoProvider:
		case client == nil && a.Repair:
			unfinished = errors.New("--repair reads the provider, and STRIPE_SECRET_KEY is not set")
		case client == nil:
			c.stderr.printf("not run: the reconciliation with the provider, for STRIPE_SECRET_KEY is not set\n")
		default:
			var checks []audit.Check
			var missed []string
			if checks, missed, unfinished = reconcile(ctx, c, db, client); unfinished == nil {
				audit.Record(results, audit.ScopeProvider, checks...)
				report.Add(checks...)
			}
			if a.Repair && len(missed) > 0 {
				unfinished = reread(ctx, c, db, missed)
			}
		}
		if err := db.Commit(ctx, results); err != nil { // a copy may refuse writes, and the report is still wanted
			c.stderr.printf("not kept: the result, which the metrics should show: %v\n", err)
		}
		if unfinished != nil && a.JSON {
			return unfinished // a program must not take half a report for one that found nothing
		}
		if !a.JSON && !a.Quiet {
			c.stdout.printf("The workers had audited what was recorded before %s, and found %d violations since the audit before this one.\n\n",
				before.Until.UTC().Format(time.RFC3339), before.New)
		}
		a.print(&c.stdout, report)
		if unfinished == nil && !report.OK {
			return errFound
		}
		return unfinished
	})
}

// print prints a line for each check, then examples of what was violated.
func (a auditCmd) print(p *printer, report audit.Report) {
	if a.JSON {
		p.json(report)
		return
	}
	if a.Quiet {
		printViolations(p, report)
		return
	}
	var rows [][]any
	for _, c := range report.Checks {
		result := "ok"
		if c.Violated > 0 {
			result = "VIOLATED"
		}
		rows = append(rows, []any{c.Name, c.Checked, c.Violated, result})
	}
	p.table("CHECK\tCHECKED\tVIOLATED\tRESULT", rows)
	for _, c := range report.Checks {
		if len(c.Examples) > 0 {
			p.printf("\n%s, for example\n", c.Name)
		}
		for _, example := range c.Examples {
			p.printf("  %s\n", oneLine(example))
		}
	}
}

// printViolations prints a line per violation. A report holds but the first few
// of a check; how many more there are is a line too.
func printViolations(p *printer, report audit.Report) {
	for _, c := range report.Checks {
		lines := c.Examples
		if more := c.Violated - int64(len(lines)); more > 0 {
			lines = append(slices.Clone(lines), fmt.Sprintf("and %d more of %d", more, c.Checked))
		}
		for _, line := range lines {
			p.printf("%s: %s\n", c.Name, oneLine(line))
		}
	}
}

// reread lets the workers read the refunds and disputes of charges from the provider.
//
// If we die here: the messages of some charges are committed. The operator repeats the command; a
// read that finds nothing new records nothing.
// Test: e2e TestRestore_ofAnOlderDump_capturesNothingTwice.
func reread(ctx context.Context, c *console, db *postgres.DB, charges []string) error {
	for _, id := range charges {
		charge, err := ledger.Find(ctx, db, id)
		if err != nil {
			return err
		}
		b := &pgx.Batch{}
		fulfillment.Reread(b, charge)
		if err := db.Commit(ctx, b); err != nil {
			return fmt.Errorf("queue the reads of charge %s: %w", id, err)
		}
	}
	c.stderr.printf("the workers will read the refunds and disputes of %d charges from the provider\n", len(charges))
	return nil
}

func reconcile(ctx context.Context, c *console, db *postgres.DB, client *stripe.Client) ([]audit.Check, []string, error) {
	listed, end := c.progress("reconciling, of the provider's lists")
	defer end()
	if err := checkAccount(ctx, db, client); err != nil {
		return nil, nil, err
	}
	return audit.Reconcile(ctx, db,
		translate(listed, client.Intents(ctx), func(in stripe.Intent) audit.Listed {
			return audit.Listed{
				ID: in.ID, Reference: in.Reference, PaymentIntent: in.ID,
				Status: string(in.Status), Amount: in.AmountReceived, Currency: in.Currency,
			}
		}),
		translate(listed, client.Refunds(ctx, ""), func(r stripe.Refund) audit.Listed {
			return audit.Listed{
				ID: r.ID, Reference: r.Reference, PaymentIntent: r.PaymentIntent,
				Status: r.Status, Amount: r.Amount, Currency: r.Currency,
			}
		}),
		translate(listed, client.Disputes(ctx, ""), listedDispute))
}

// listedDispute sums the movements of a dispute, each with its fee.
func listedDispute(d stripe.Dispute) audit.Listed {
	l := audit.Listed{ID: d.ID, PaymentIntent: d.PaymentIntent, Currency: d.Currency, Status: cmp.Or(d.Closed, string(domain.DisputeOpen))}
	ids := make([]string, 0, len(d.Moved))
	for _, m := range d.Moved {
		ids = append(ids, m.ID)
		l.Amount += m.Fee - m.Amount
	}
	slices.Sort(ids)
	l.Moves = strings.Join(ids, " ")
	return l
}

// checkAccount refuses a secret key of another account than the one that the database is bound to.
func checkAccount(ctx context.Context, db *postgres.DB, client *stripe.Client) error {
	account, err := client.Account(ctx)
	if err != nil {
		return err
	}
	return restore.CheckAccount(ctx, db, account.ID, account.Live)
}

// translate turns a list of the provider's into another, and counts it.
func translate[S, T any](listed *atomic.Int64, list iter.Seq2[S, error], to func(S) T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for s, err := range list {
			listed.Add(1)
			if !yield(to(s), err) {
				return
			}
		}
	}
}
