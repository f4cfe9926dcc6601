package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/stripe"
)

type timelineCmd struct {
	reader

	Name     string `arg:"" help:"A charge (ch_…), a refund (re_…) or an idempotency key."`
	Merchant string `placeholder:"ID" help:"Search only the records of this merchant."`
	JSON     bool   `name:"json" help:"Print the timeline as JSON."`
}

func (t timelineCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	return withProvider(func(client *stripe.Client) error { return t.show(ctx, c, db, client) })
}

// show leaves the provider out where there is no client. If the provider does not answer,
// everything else is printed before the error is returned: that is when a timeline is
// needed.
func (t timelineCmd) show(ctx context.Context, c *console, db *postgres.DB, client *stripe.Client) error {
	timeline, err := audit.ReadTimeline(ctx, db, t.Name, t.Merchant)
	if err != nil {
		return err
	}
	var silent error
	if client != nil {
		silent = addHeld(ctx, client, &timeline)
	}
	switch {
	case t.JSON:
		c.stdout.json(timeline)
	default:
		printTimeline(&c.stdout, timeline)
	}
	return silent
}

// addHeld adds the payment intents and refunds of the timeline's charges as the provider
// holds them now.
func addHeld(ctx context.Context, client *stripe.Client, t *audit.Timeline) error {
	var silent []error
	for _, charge := range t.Charges {
		if charge.PaymentIntent == "" {
			continue
		}
		in, err := client.RetrieveIntent(ctx, charge.PaymentIntent)
		if err != nil {
			silent = append(silent, fmt.Errorf("not shown: %w", err))
			continue
		}
		detail := audit.Detail{
			"id": in.ID, "status": in.Status, "amount": in.Amount, "amount_received": in.AmountReceived,
			"currency": in.Currency, "reference": in.Reference, "created": in.Created,
		}
		if in.Decline != nil {
			detail["decline"] = in.Decline.String()
		}
		t.AddHeld(charge.ID, "payment_intent", "stripe", detail)
		for r, err := range client.Refunds(ctx, charge.PaymentIntent) {
			if err != nil {
				silent = append(silent, fmt.Errorf("not shown: %w", err))
				break
			}
			detail := audit.Detail{
				"id": r.ID, "status": r.Status, "amount": r.Amount, "currency": r.Currency, "reference": r.Reference,
			}
			if r.FailureReason != "" {
				detail["failure_reason"] = r.FailureReason
			}
			t.AddHeld(charge.ID, "refund", "stripe", detail)
		}
	}
	return errors.Join(silent...)
}

// printTimeline prints the charges, then a line for each entry.
func printTimeline(p *printer, t audit.Timeline) {
	for _, c := range t.Charges {
		status := string(c.Status)
		if status == "" {
			status = "not readable"
		}
		p.printf("%s  %s  %d %s  merchant %s  order %s\n", c.ID, status, c.Amount, c.Currency, c.MerchantID, oneLine(c.OrderID))
	}
	header, several := "WHEN (UTC)\tKIND\tWHAT\tWHO\tDETAIL", len(t.Charges) > 1
	if several {
		header = "WHEN (UTC)\tCHARGE\tKIND\tWHAT\tWHO\tDETAIL"
	}
	printList(p, false, t.Entries, header, func(e audit.TimelineEntry) []any {
		what := e.What
		if e.Version > 0 {
			what = strconv.Itoa(e.Version) + " " + what
		}
		for _, name := range []string{"holder", "taken_over_by"} {
			if holder, ok := e.Detail[name].(string); ok {
				e.Detail[name] = processOf(holder)
			}
		}
		row := []any{e.At.UTC().Format("2006-01-02 15:04:05.000"), e.Kind, what, e.Who, e.Detail}
		if several {
			row = slices.Insert(row, 1, any(e.ChargeID))
		}
		return row
	})
}
