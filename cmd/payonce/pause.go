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
	if (p.What == fulfillment.PausedMerchant) != (p.Merchant != "") {
		return errors.New("name the merchant after the word merchant, and nowhere else")
	}
	return p.checkLength()
}

func (p pauseCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	return p.set(ctx, c, db, true, unknownMerchant(p.Merchant))
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
	return r.set(ctx, c, db, false, fmt.Errorf("%s was never paused: payonce pause lists what is", strings.TrimSpace(r.What+" "+r.Merchant)))
}

// set pauses or resumes, and prints what is paused then. unknown is the error if there is nothing
// to pause or resume.
//
// If we die here: the pause and its record are one transaction.
func (p pauseCmd) set(ctx context.Context, c *console, db *postgres.DB, paused bool, unknown error) error {
	if p.What != "" {
		b, known := &pgx.Batch{}, false
		fulfillment.SetPause(b, fulfillment.Pause{What: p.What, Merchant: p.Merchant}, paused, &known)
		if err := db.Commit(ctx, b); err != nil {
			return fmt.Errorf("change what is paused: %w", err)
		}
		if !known {
			return unknown
		}
		c.stderr.printf("the workers follow within 2 s, and finish what they handle\n")
	}
	all, err := fulfillment.ListPauses(ctx, db)
	if err == nil {
		printList(&c.stdout, p.JSON, all, "PAUSED\tMERCHANT", func(p fulfillment.Pause) []any { return []any{p.What, p.Merchant} })
	}
	return err
}
