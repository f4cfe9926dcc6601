package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/upkeep"
	"github.com/payonce/payonce/ledger"
)

type auditCmd struct {
	Quiet      bool `help:"Print one line per violation, and nothing if there is none: for cron."`
	NoProvider bool `xor:"provider" help:"Do not compare the ledger with the provider, and do not warn about that."`
	Repair     bool `xor:"provider" help:"Let the workers read from the provider what it lists of refunds and disputes and the ledger has otherwise, as the provider's events that were lost would have done."`
}

func (a auditCmd) AfterApply(cli *commands) error {
	if a.Quiet && cli.JSON {
		return errors.New("--quiet or --json, but not both")
	}
	return nil
}

// Run exits with 1 if a promise is violated, or if the audit could not be finished. Where only
// the provider does not answer, people still see what our own tables show. That the provider
// was not asked is said on stderr, also by --quiet: a cron job that has lost its settings must
// not look like one that found nothing.
func (a auditCmd) Run(ctx context.Context, c *console, db *postgres.DB, client *stripe.Client) error {
	before, err := audit.ReadProgress(ctx, db)
	if err != nil {
		return err
	}
	report, err := audit.Run(ctx, db.Pool())
	if err != nil {
		return err
	}
	results := &pgx.Batch{}
	audit.Record(results, audit.ScopeTables, report.Checks...)
	before.MarkSuperseded(results)
	unfinished := a.reconcile(ctx, c, db, client, &report, results)
	if err := db.Commit(ctx, results); err != nil { // a copy may refuse writes, and the report is still wanted
		c.remark("not kept: the result, which the metrics should show: %v\n", err)
	}
	if unfinished != nil && c.json {
		return unfinished // a program must not take half a report for one that found nothing
	}
	c.show(report, func(p io.Writer) {
		if !a.Quiet {
			fmt.Fprintf(p, "The workers had audited what was recorded before %s, and found %d violations since the audit before this one.\n\n",
				before.Until.UTC().Format(time.RFC3339), before.New)
			printChecks(p, report.Checks)
		}
		for _, check := range report.Checks {
			for _, example := range check.Examples {
				fmt.Fprintf(p, "%s: %s\n", check.Name, oneLine(example))
			}
			if more := check.Violated - int64(len(check.Examples)); more > 0 {
				fmt.Fprintf(p, "%s: and %d more of %d\n", check.Name, more, check.Checked)
			}
		}
	})
	if unfinished == nil && !report.OK {
		return errFound
	}
	return unfinished
}

// printChecks prints a line for each check.
func printChecks(p io.Writer, checks []audit.Check) {
	table(p, checks, columns[audit.Check]{"CHECK\tCHECKED\tVIOLATED\tRESULT", func(c audit.Check) []any {
		return []any{c.Name, c.Checked, c.Violated, map[bool]string{true: "ok", false: "VIOLATED"}[c.Violated == 0]}
	}})
}

// reconcile adds what the provider's lists show to the report and, with --repair, lets the workers
// read what the ledger has otherwise.
func (a auditCmd) reconcile(ctx context.Context, c *console, db *postgres.DB, client *stripe.Client, report *audit.Report, results *pgx.Batch) error {
	switch {
	case a.NoProvider:
		return nil
	case client == nil && a.Repair:
		return errors.New("--repair reads the provider, and STRIPE_SECRET_KEY is not set")
	case client == nil:
		c.remark("not run: the reconciliation with the provider, for STRIPE_SECRET_KEY is not set\n")
		return nil
	}
	account, err := client.Account(ctx)
	if err == nil {
		err = upkeep.CheckAccount(ctx, db, account.ID, account.Live)
	}
	if err != nil {
		return err
	}
	checks, missed, err := audit.Reconcile(ctx, db, audit.Lists(ctx, client))
	if err != nil {
		return err
	}
	audit.Record(results, audit.ScopeProvider, checks...)
	report.Add(checks...)
	if a.Repair && len(missed) > 0 {
		return reread(ctx, c, db, missed)
	}
	return nil
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
	c.remark("the workers will read the refunds and disputes of %d charges from the provider\n", len(charges))
	return nil
}

type timelineCmd struct {
	merchantFlag

	Name string `arg:"" help:"A charge (ch_…), a refund (re_…) or an idempotency key."`
}

// Run leaves the provider out where there is no client. If the provider does not answer,
// everything else is printed before the error is returned: that is when a timeline is
// needed.
func (t timelineCmd) Run(ctx context.Context, c *console, db *postgres.DB, client *stripe.Client) error {
	timeline, err := audit.ReadTimeline(ctx, db, t.Name, t.Merchant)
	if err != nil {
		return err
	}
	var silent error
	if client != nil {
		silent = timeline.AddHeld(ctx, client)
	}
	c.show(timeline, func(p io.Writer) { printTimeline(p, timeline) })
	return silent
}

// printTimeline prints the charges, then a line for each entry.
func printTimeline(p io.Writer, t audit.Timeline) {
	for _, c := range t.Charges {
		fmt.Fprintf(p, "%s  %s  %d %s  merchant %s  order %s\n", c.ID, cmp.Or(string(c.Status), "not readable"), c.Amount, c.Currency, c.MerchantID, oneLine(c.OrderID))
	}
	as := columns[audit.TimelineEntry]{"WHEN (UTC)\tKIND\tWHAT\tWHO\tDETAIL", func(e audit.TimelineEntry) []any {
		what := e.What
		if e.Version > 0 {
			what = strconv.Itoa(e.Version) + " " + what
		}
		return []any{e.At.UTC().Format("2006-01-02 15:04:05.000"), e.Kind, what, e.Who, e.Detail}
	}}
	if one := as.row; len(t.Charges) > 1 {
		as = columns[audit.TimelineEntry]{"WHEN (UTC)\tCHARGE\tKIND\tWHAT\tWHO\tDETAIL", func(e audit.TimelineEntry) []any {
			return slices.Insert(one(e), 1, any(e.ChargeID))
		}}
	}
	table(p, t.Entries, as)
}

type actionsCmd struct {
	merchantFlag

	Since time.Time `placeholder:"2026-11-21T08:00:00Z" help:"List only actions of this time or later (RFC 3339)."`
	Limit uint32    `default:"100" help:"Number of actions."`
}

func (a actionsCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	actions, err := audit.ListActions(ctx, db, a.Merchant, a.Since, int(a.Limit))
	return showOwned(ctx, c, db, a.merchantFlag, actions, err, columns[audit.Action]{
		"WHEN\tWHO\tLOGIN\tACTION\tSUBJECT\tMERCHANT\tBEFORE\tAFTER", func(a audit.Action) []any {
			return []any{a.At, a.Actor, a.Login, a.Action, a.Subject, cmp.Or(a.Merchant, "-"), string(a.Before), string(a.After)}
		},
	})
}
