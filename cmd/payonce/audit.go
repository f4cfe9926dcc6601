package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
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
	Quiet  bool `help:"Print one line per violation, and nothing if there is none: for cron."`
	Repair bool `help:"Let the workers read from the provider what it lists of refunds and disputes and the ledger has otherwise, as the provider's events that were lost would have done."`
}

// Run exits with 1 if a promise is violated, or if the audit could not be finished. Where only
// the provider does not answer, people still see what our own tables show. That the provider
// was not asked is said on stderr, also by --quiet: a cron job that has lost its settings must
// not look like one that found nothing.
func (a auditCmd) Run(ctx context.Context, c *console, db *postgres.DB, client *stripe.Client) error {
	found, left, err := audit.Found(ctx, db)
	if err != nil {
		return err
	}
	if left > 0 { // the tables need not show them any more, and this audit supersedes them
		c.remark("the workers have found %d violations since the last audit: their logs name them\n", left)
	}
	report, err := audit.Run(ctx, db.Pool())
	if err != nil {
		return err
	}
	results := &pgx.Batch{}
	audit.Record(results, audit.ScopeTables, report.Checks...)
	audit.Supersede(results, found)
	unfinished := a.reconcile(ctx, c, db, client, &report, results)
	if err := db.Commit(ctx, results); err != nil { // a copy may refuse writes, and the report is still wanted
		c.remark("not kept: the result, which the metrics should show: %v\n", err)
	}
	if unfinished != nil && c.json {
		return unfinished // a program must not take half a report for one that found nothing
	}
	c.show(report, func(p io.Writer) {
		if !a.Quiet {
			table(p, report.Checks, checkColumns)
		}
		printViolations(p, report.Checks)
	})
	if unfinished == nil && !report.OK {
		return errFound
	}
	return unfinished
}

const checkColumns = "name checked violated"

// printViolations prints each example, which has a line or several, and how many more violations there are.
func printViolations(p io.Writer, checks []audit.Check) {
	for _, check := range checks {
		for _, example := range check.Examples {
			for line := range strings.SplitSeq(example, "\n") {
				fmt.Fprintf(p, "%s: %s\n", check.Name, oneLine(line))
			}
		}
		if more := check.Violated - len(check.Examples); more > 0 {
			fmt.Fprintf(p, "%s: and %d more of %d\n", check.Name, more, check.Checked)
		}
	}
}

// reconcile adds what the provider's lists show to the report and, with --repair, lets the workers read the
// refunds and disputes that the ledger has otherwise: a commit for each charge, however many there are.
//
// If we die here: the messages of some charges are committed. The operator repeats the command; a read that
// finds nothing new records nothing.
// Test: e2e TestRestore_ofAnOlderDump_capturesNothingTwice.
func (a auditCmd) reconcile(ctx context.Context, c *console, db *postgres.DB, client *stripe.Client, report *audit.Report, b *pgx.Batch) error {
	switch {
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
	checks, missed, err := audit.Reconcile(ctx, db.Pool(), audit.Lists(ctx, client))
	if err != nil {
		return err
	}
	audit.Record(b, audit.ScopeProvider, checks...)
	report.Add(checks...)
	if !a.Repair {
		return nil
	}
	for _, id := range missed {
		reads := &pgx.Batch{}
		charge, err := ledger.Find(ctx, db, id)
		if err == nil {
			fulfillment.Reread(reads, charge)
			err = db.Commit(ctx, reads)
		}
		if err != nil {
			return fmt.Errorf("let the workers read %s from the provider: %w", id, err)
		}
	}
	c.remark("the workers are to read the refunds and disputes of %d charges from the provider\n", len(missed))
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
	table(p, t.Charges, "id status amount currency merchant_id order_id")
	columns := "at kind what version who detail"
	if len(t.Charges) > 1 {
		columns = "at charge_id kind what version who detail"
	}
	table(p, t.Entries, columns)
}

type actionsCmd struct {
	merchantFlag

	Since time.Time `placeholder:"2026-11-21T08:00:00Z" help:"List only actions of this time or later (RFC 3339)."`
	Limit uint32    `default:"100" help:"Number of actions."`
}

func (a actionsCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	actions, err := audit.ListActions(ctx, db, a.Merchant, a.Since, int(a.Limit))
	return showList(c, actions, err, "at actor login action subject merchant before after")
}
