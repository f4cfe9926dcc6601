package main

import (
	"context"
	"errors"
	"strings"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/migrations"
	"github.com/payonce/payonce/migrations/version"
)

type migrateCmd struct {
	JSON bool `name:"json" help:"Print the schema's version, and the migrations that were applied, as JSON."`
}

// migrated says what a migration did.
type migrated struct {
	From    int64    `json:"from"` // the version before, 0 for an empty database
	Version int64    `json:"version"`
	Applied []string `json:"applied"` // never nil
}

// run migrates a server that was checked when it was opened.
func (m migrateCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	from, err := version.Of(ctx, db)
	if err != nil {
		return err
	}
	if err := migrations.Up(ctx, db.Pool().Config().ConnString()); err != nil {
		return err
	}
	done := migrated{From: from, Applied: []string{}}
	if done.Version, err = version.Of(ctx, db); err != nil {
		return err
	}
	for _, step := range migrations.All() {
		if step.Version > from {
			done.Applied = append(done.Applied, step.Name)
		}
	}
	switch {
	case m.JSON:
		c.stdout.json(done)
	case len(done.Applied) == 0:
		c.stderr.printf("the schema has version %d already: nothing to apply\n", done.Version)
	default:
		c.stderr.printf("the schema was migrated from version %d to %d: %s\n", from, done.Version, strings.Join(done.Applied, ", "))
	}
	return nil
}

type outboxCmd struct {
	Repair outboxRepairCmd `cmd:"" help:"Continue the order of the ledger's events after a restore from a dump. Until then the programs refuse to start. It takes milliseconds. Messages need no repair."`
}

type outboxRepairCmd struct {
	Force bool `help:"Repair even if the tables were not restored from a dump."`
	JSON  bool `name:"json" help:"Print what was done as JSON."`
}

// repaired is what programs get.
type repaired struct {
	WasOriginal bool  `json:"was_original"` // the tables had not been restored
	Epoch       int64 `json:"epoch"`
}

// run refuses where there is nothing to do, so that the operator looks elsewhere.
func (r outboxRepairCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	original, err := restore.IsOriginal(ctx, db)
	if err != nil {
		return err
	}
	if original && !r.Force {
		return errors.New("nothing to repair: the tables did not come through a dump since they were made or repaired (--force repairs all the same)")
	}
	epoch, err := restore.Repair(ctx, db)
	if err != nil {
		return err
	}
	if r.JSON {
		c.stdout.json(repaired{original, epoch})
		return nil
	}
	c.stdout.printf("the ledger is in epoch %d: what was restored is older than what follows, and the programs may start\n", epoch)
	return nil
}

type rebuildCmd struct {
	JSON bool `name:"json" help:"Print what was found as JSON."`
}

func (r rebuildCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	_, end := c.progress("counting the ledger")
	found, err := ledger.Recount(ctx, db)
	end()
	if err != nil {
		return err
	}
	if r.JSON {
		c.stdout.json(found)
	} else {
		printRecounted(&c.stdout, found)
	}
	if found.Different > 0 {
		return errFound // and they were replaced
	}
	return nil
}

func printRecounted(p *printer, found ledger.Recounted) {
	p.printf("%d events of %d charges counted, up to position %d\n%d balances compared: %d differed%s\n",
		found.Events, found.Charges, found.AsOfPosition, found.Balances, found.Different,
		map[bool]string{true: ", and were replaced"}[found.Different > 0])
	for _, example := range found.Examples {
		p.printf("  %s\n", oneLine(example))
	}
	if more := found.Different - int64(len(found.Examples)); more > 0 {
		p.printf("  and %d more\n", more)
	}
}
