package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/internal/postgres"
)

type pauseCmd struct {
	What     string `arg:"" optional:"" enum:"fulfillment,notification,merchant," default:"" help:"fulfillment: no charge, cancellation or refund is carried out. notification: no webhook is sent. merchant: neither, of one merchant. Without it what is paused is printed."`
	Merchant string `arg:"" optional:"" help:"The merchant."`
	JSON     bool   `name:"json" help:"Print what is paused as JSON."`

	reasonFlag
}

func (p pauseCmd) check() error {
	if (p.What == "merchant") != (p.Merchant != "") {
		return errors.New("name the merchant after the word merchant, and nowhere else")
	}
	return p.checkLength()
}

func (p pauseCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	return p.set(ctx, c, db, setPause, unknownMerchant(p.Merchant))
}

// resumeCmd ends a pause.
type resumeCmd struct{ pauseCmd }

func (r resumeCmd) check() error {
	if r.What == "" {
		return errors.New("say what to resume: payonce pause lists what is paused")
	}
	return r.pauseCmd.check()
}

func (r resumeCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	return r.set(ctx, c, db, endPause, fmt.Errorf("%s was never paused: payonce pause lists what is", strings.TrimSpace(r.What+" "+r.Merchant)))
}

// pause is what stands still.
type pause struct {
	What     string `json:"what"`
	Merchant string `json:"merchant,omitempty"`
}

const (
	setPause = `
insert into pauses (what, merchant_id, paused)
select what, $2, true
  from unnest($1::text[]) as u(what)
 where $2 = '' or exists (select from merchants where merchant_id = $2)
    on conflict (what, merchant_id) do update
   set paused = true`
	endPause = `
update pauses
   set paused = false
 where what = any ($1)
   and merchant_id = $2`
)

// set pauses or resumes, and prints what is paused then. Both may be repeated. unknown is the
// error if no row is changed.
//
// If we die here: the pause and its record are one transaction.
func (p pauseCmd) set(ctx context.Context, c *console, db *postgres.DB, change string, unknown error) error {
	if p.What != "" {
		what := []string{p.What}
		if p.What == fulfillment.NotificationReceiver {
			what = append(what, fulfillment.ResendReceiver)
		}
		changed, err := db.Pool().Exec(ctx, change, what, p.Merchant)
		if err != nil {
			return fmt.Errorf("change what is paused: %w", err)
		}
		if changed.RowsAffected() == 0 {
			return unknown
		}
		c.stderr.printf("the workers follow within 2 s, and finish what they handle\n")
	}
	rows, _ := db.Query(ctx, `select what, merchant_id as merchant from pauses where paused order by what, merchant_id`) // CollectRows returns its error
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[pause])
	if err != nil {
		return fmt.Errorf("read what is paused: %w", err)
	}
	printList(&c.stdout, p.JSON, all, "PAUSED\tMERCHANT", func(p pause) []any { return []any{p.What, p.Merchant} })
	return nil
}
