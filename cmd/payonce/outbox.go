package main

import (
	"context"
	"errors"
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

// options allow for a repair that writes every row of the ledger.
func (outboxRepairCmd) options() postgres.Options {
	return postgres.Options{Application: "payonce-repair", MaxConns: 2, StatementTimeout: 6 * time.Hour}
}

// repairReport is what programs get.
type repairReport struct {
	Before   restore.Numbering `json:"before"`
	Repaired restore.Repaired  `json:"repaired"`
}

// run refuses where there is nothing to do, so that the operator looks elsewhere.
func (r outboxRepairCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	before, err := restore.ReadNumbering(ctx, db)
	if err != nil {
		return err
	}
	if !before.Foreign() && !r.Force {
		return errors.New("nothing to repair: the tables did not come through a dump since they were made or repaired (--force repairs all the same)")
	}
	done, err := restore.Repair(ctx, db)
	if err != nil {
		return err
	}
	if r.JSON {
		c.stdout.json(repairReport{Before: before, Repaired: done})
		return nil
	}
	c.stdout.printf("transactions up to %d were stored, the server's next one is %d\n%d events and %d received messages numbered anew, %d messages will be delivered again\n",
		before.Newest, before.Next, done.Events, done.Received, done.Messages)
	return nil
}
