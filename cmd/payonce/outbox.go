package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/restore"
)

type outboxCmd struct {
	Repair outboxRepairCmd `cmd:"" help:"After a restore from a dump: number messages, events and checkpoints anew, so that readers go on."`
}

type outboxRepairCmd struct {
	Force bool `help:"Repair also where the tables did not come through a dump."`
	JSON  bool `name:"json" help:"Print what was done as JSON."`
}

// Run prints on stdout what it found and did. A repair writes every row of the ledger.
func (c outboxRepairCmd) Run(ctx context.Context) error {
	return withDB(ctx, postgres.Options{Application: "payonce-repair", MaxConns: 2, StatementTimeout: 6 * time.Hour},
		func(db *postgres.DB) error { return c.repair(ctx, os.Stdout, db) })
}

// repairReport is what programs get.
type repairReport struct {
	Before   restore.Numbering `json:"before"`
	Repaired restore.Repaired  `json:"repaired"`
}

// repair refuses where there is nothing to do, so that the operator looks elsewhere.
func (c outboxRepairCmd) repair(ctx context.Context, w io.Writer, db *postgres.DB) error {
	before, err := restore.ReadNumbering(ctx, db)
	if err != nil {
		return err
	}
	if !before.Foreign() && !c.Force {
		return errors.New("nothing to repair: the tables did not come through a dump since they were made or repaired (--force repairs all the same)")
	}
	done, err := restore.Repair(ctx, db)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(w, repairReport{Before: before, Repaired: done})
	}
	_, err = fmt.Fprintf(w, "transactions up to %d were stored, the server's next one is %d\n%d events and %d received messages numbered anew, %d messages will be delivered again\n",
		before.Newest, before.Next, done.Events, done.Received, done.Messages)
	if err != nil {
		return fmt.Errorf("print what was done: %w", err)
	}
	return nil
}
