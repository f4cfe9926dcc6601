package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/fulfillment/operate"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/upkeep"
	"github.com/payonce/payonce/ledger/books"
	"github.com/payonce/payonce/migrations"
	"github.com/payonce/payonce/migrations/version"
)

type migrateCmd struct{}

// Run migrates a server that was checked when it was opened. An empty database has version 0.
func (migrateCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	from, err := version.Of(ctx, db)
	if err != nil {
		return err
	}
	if err := migrations.Up(ctx, db.Pool().Config().ConnString()); err != nil {
		return err
	}
	showOne(c, map[string]int64{"from": from, "version": version.Latest}, "from version")
	return nil
}

// pauseCmd is pause and resume.
type pauseCmd struct {
	What     string `arg:"" optional:"" enum:"fulfillment,notification,merchant," default:"" help:"fulfillment: no charge, cancellation or refund is carried out. notification: no webhook is sent. merchant: neither, of one merchant. Without it pause lists what is paused."`
	Merchant string `arg:"" optional:"" help:"The merchant."`

	reasonFlag
}

func (p pauseCmd) AfterApply(o *postgres.Options, parsed *kong.Context) error {
	if p.What == "" && parsed.Selected().Name == "resume" {
		return errors.New("say what to resume: payonce pause lists what is paused")
	}
	if (p.What == operate.PausedMerchant) != (p.Merchant != "") {
		return errors.New("name the merchant after the word merchant, and nowhere else")
	}
	return p.reasonFlag.AfterApply(o)
}

// Run pauses or resumes, and prints what is paused then.
//
// If we die here: the pause and its record are one transaction.
func (p pauseCmd) Run(ctx context.Context, c *console, db *postgres.DB, parsed *kong.Context) error {
	if p.What != "" {
		b, known := &pgx.Batch{}, false
		operate.SetPause(b, operate.Pause{What: p.What, Merchant: p.Merchant}, parsed.Selected().Name == "pause", &known)
		if err := db.Commit(ctx, b); err != nil {
			return fmt.Errorf("change what is paused: %w", err)
		}
		if !known {
			return errors.New("there is no such merchant, or no such pause to end: payonce pause lists what is paused")
		}
		c.remark("the workers follow within 3 s, and finish what they handle\n")
	}
	all, err := operate.ListPauses(ctx, db)
	return showList(c, all, err, "what merchant")
}

type outboxCmd struct {
	Repair outboxRepairCmd `cmd:"" help:"Continue after a restore from a dump. The order of the ledger's events goes on in a new epoch. Until then the programs refuse to start. It takes milliseconds. Messages need no repair." example:"outbox repair"`
}

type outboxRepairCmd struct {
	Force bool `help:"Repair even if the tables were not restored from a dump."`
}

// Run refuses where there is nothing to do, so that the operator looks elsewhere.
func (r outboxRepairCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	original, err := upkeep.IsOriginal(ctx, db)
	if err != nil {
		return err
	}
	if original && !r.Force {
		return errors.New("nothing to repair: the tables did not come through a dump since they were made or repaired (--force repairs all the same)")
	}
	epoch, err := upkeep.Repair(ctx, db)
	if err != nil {
		return err
	}
	showOne(c, map[string]any{"was_original": original, "epoch": epoch}, "epoch was_original")
	return nil
}

type rebuildCmd struct{}

// Run has replaced what it found.
func (rebuildCmd) Run(ctx context.Context, c *console, db *postgres.DB) error {
	found, err := books.Recount(ctx, db)
	if err != nil {
		return err
	}
	showOne(c, found, "events charges as_of_position balances different examples")
	if found.Different > 0 {
		return errFound
	}
	return nil
}
