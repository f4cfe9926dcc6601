package main

import (
	"context"
	"fmt"
	"time"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
)

type rebuildCmd struct {
	JSON bool `name:"json" help:"Print what was found as JSON."`
}

// differed is the exit code of a rebuild that found the live projections to be
// wrong. The new ones have taken their place all the same.
const differed exitError = 1

// options allow for a rebuild that compares whole tables. One connection holds its lock
// meanwhile.
func (rebuildCmd) options() postgres.Options {
	return postgres.Options{
		Application: "payonce-rebuild", MaxConns: 2, StatementTimeout: time.Hour,
		Settings: map[string]string{"idle_in_transaction_session_timeout": "0"},
	}
}

// run prints its progress on stderr.
func (r rebuildCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	const every = 100_000
	reported := int64(0)
	found, err := ledger.Rebuild(ctx, db, func(events int64) {
		if events/every > reported {
			reported = events / every
			c.stderr.printf("%d events folded\n", events)
		}
	})
	switch {
	case err != nil && found.InDoubt:
		return fmt.Errorf("whether the new ones are live is not known, so rebuild again: %w", err)
	case err != nil && !found.Live:
		return fmt.Errorf("nothing was changed: %w", err)
	case err != nil:
		c.stderr.printf("the next rebuild cleans up: %v\n", err)
	}
	if r.JSON {
		c.stdout.json(found)
	} else {
		printRebuilt(&c.stdout, found)
	}
	if found.Different > 0 {
		return differed
	}
	return nil
}

func printRebuilt(p *printer, found ledger.Rebuilt) {
	p.printf("%d events folded, up to position %d\n%d charges and %d balances compared with the live ones: %d differed\n",
		found.Events, found.AsOfPosition, found.Charges, found.Balances, found.Different)
	for _, example := range found.Examples {
		p.printf("  %s\n", oneLine(example))
	}
	if more := found.Different - int64(len(found.Examples)); more > 0 {
		p.printf("  and %d more\n", more)
	}
	p.printf("the new ones are live\n")
}
