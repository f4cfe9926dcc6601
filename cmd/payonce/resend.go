package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/postgres"
)

type webhooksResendCmd struct {
	Names    []string  `arg:"" optional:"" name:"id" help:"An event's id, which is the webhook-id, or a charge's: all of its outcomes and of its refunds'."`
	Merchant string    `placeholder:"ID" help:"All outcomes of this merchant, within --since and --until."`
	Since    time.Time `placeholder:"2026-11-21T08:00:00Z" help:"Recorded at this time or later (RFC 3339)."`
	Until    time.Time `placeholder:"2026-11-21T09:00:00Z" help:"Recorded before this time; now without it."`
	JSON     bool      `name:"json" help:"Print the webhooks as JSON."`
}

// resendPage is how many resends are committed at once.
const resendPage = 200

// options allow for reading a merchant's outcomes, to which no index leads.
func (webhooksResendCmd) options() postgres.Options {
	return postgres.Options{Application: "payonce-resend", MaxConns: 2, StatementTimeout: 2 * time.Minute}
}

func (r webhooksResendCmd) check() error {
	switch {
	case len(r.Names) == 0 && r.Merchant == "":
		return errors.New("say what: an event's id, a charge's, or --merchant and --since")
	case len(r.Names) > 0 && (r.Merchant != "" || !r.Since.IsZero() || !r.Until.IsZero()):
		return errors.New("ids, or --merchant with --since and --until, but not both")
	case r.Merchant != "" && r.Since.IsZero():
		return errors.New("--merchant needs --since")
	case !r.Until.IsZero() && !r.Until.After(r.Since):
		return errors.New("--until must be later than --since")
	}
	return nil
}

// resend is a webhook that will be delivered once more.
type resend struct {
	fulfillment.Outcome

	ResendID uuid.UUID `json:"resend_id"`
}

// resending is the state of one command.
type resending struct {
	webhooksResendCmd

	c       *console
	db      *postgres.DB
	resends []resend
	refused []error
}

// run returns when the resends are recorded; the workers deliver. A webhook that cannot be
// delivered again is named on stderr and does not keep the others from it. If it was given
// by name, the exit code is then 1.
func (r webhooksResendCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	do := &resending{webhooksResendCmd: r, c: c, db: db, resends: []resend{}}
	find := do.named
	if r.Merchant != "" {
		find = do.since
	}
	failed := find(ctx)
	if r.JSON { // also after a failure: what was recorded before it will be delivered
		c.stdout.json(map[string]any{"data": do.resends})
	}
	if r.Merchant == "" {
		return errors.Join(append(do.refused, failed)...)
	}
	for _, refusal := range do.refused {
		c.stderr.printf("left out: %v\n", refusal)
	}
	if failed == nil && len(do.resends)+len(do.refused) == 0 {
		return fmt.Errorf("merchant %q has no outcome within that time", r.Merchant)
	}
	return failed
}

func (r *resending) named(ctx context.Context) error {
	for _, name := range r.Names {
		outcomes, err := fulfillment.OutcomesOf(ctx, r.db, name)
		if err != nil {
			return err
		}
		if len(outcomes) == 0 {
			r.refused = append(r.refused, fmt.Errorf("%q is neither an event that is an outcome nor a charge that has one", name))
			continue
		}
		if err := r.record(ctx, outcomes); err != nil {
			return err
		}
	}
	return nil
}

func (r *resending) since(ctx context.Context) error {
	page := fulfillment.Page{Merchant: r.Merchant, Since: r.Since, Until: r.Until, Limit: resendPage}
	for {
		outcomes, err := fulfillment.OutcomesSince(ctx, r.db, page)
		if err != nil {
			return err
		}
		if err := r.record(ctx, outcomes); err != nil {
			return err
		}
		if len(outcomes) < page.Limit {
			return nil
		}
		page.After = outcomes[len(outcomes)-1].Position
	}
}

// record records the resends of a page of outcomes in one commit.
//
// If we die here: the resends of pages that were committed are delivered, and those of later
// pages are not recorded. The operator repeats the command, and the merchant knows the
// repeated webhooks by their IDs.
// Test: TestWebhooksResend/what_a_lost_answer_leaves_open_may_be_asked_again.
func (r *resending) record(ctx context.Context, outcomes []fulfillment.Outcome) error {
	b := &pgx.Batch{}
	var page []resend
	for _, o := range outcomes {
		if refusal := o.Refusal(); refusal != nil {
			r.refused = append(r.refused, fmt.Errorf("%s of %s, event %s: %w", o.Type, o.ChargeID, o.EventID, refusal))
			continue
		}
		one := resend{Outcome: o, ResendID: uuid.New()}
		if err := fulfillment.Resend(b, o, one.ResendID, operator()); err != nil {
			return err
		}
		page = append(page, one)
	}
	if len(page) == 0 {
		return nil
	}
	if err := r.db.Commit(ctx, b); err != nil {
		return fmt.Errorf("ask for %d webhooks once more, from event %s on (ask again if in doubt): %w", len(page), page[0].EventID, err)
	}
	r.resends = append(r.resends, page...)
	for _, one := range page {
		if !r.JSON {
			r.c.stdout.printf("%s of %s will be delivered once more: event %s, resend %s\n", one.Type, oneLine(one.ChargeID), one.EventID, one.ResendID)
		}
	}
	return nil
}
