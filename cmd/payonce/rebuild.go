package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
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

// Run prints what it found on stdout, and its progress on stderr. A rebuild compares whole
// tables, in snapshots that stay open meanwhile. It has three connections: one holds its
// lock, the others two snapshots, or one snapshot and a commit.
func (c rebuildCmd) Run(ctx context.Context) error {
	return withDB(ctx, postgres.Options{
		Application: "payonce-rebuild", MaxConns: 3, StatementTimeout: time.Hour,
		Settings: map[string]string{"idle_in_transaction_session_timeout": "0"},
	}, func(db *postgres.DB) error { return c.rebuild(ctx, db, os.Stdout, os.Stderr) })
}

func (c rebuildCmd) rebuild(ctx context.Context, db *postgres.DB, stdout, stderr io.Writer) error {
	const every = 100_000
	reported := int64(0)
	found, err := ledger.Rebuild(ctx, db, func(events int64) {
		if events/every > reported {
			reported = events / every
			fmt.Fprintf(stderr, "%d events folded\n", events)
		}
	})
	switch {
	case err != nil && found.InDoubt:
		return fmt.Errorf("whether the new ones are live is not known, so rebuild again: %w", err)
	case err != nil && !found.Live:
		return fmt.Errorf("nothing was changed: %w", err)
	case err != nil:
		fmt.Fprintf(stderr, "the next rebuild cleans up: %v\n", err)
	}
	if c.JSON {
		err = printJSON(stdout, found)
	} else {
		err = printRebuilt(stdout, found)
	}
	if err != nil {
		return err
	}
	if found.Different > 0 {
		return differed
	}
	return nil
}

func printRebuilt(w io.Writer, found ledger.Rebuilt) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%d events folded, up to position %d\n%d charges and %d balances compared with the live ones: %d differed\n",
		found.Events, found.AsOfPosition, found.Charges, found.Balances, found.Different)
	for _, example := range found.Examples {
		fmt.Fprintf(&text, "  %s\n", oneLine(example))
	}
	if more := found.Different - int64(len(found.Examples)); more > 0 {
		fmt.Fprintf(&text, "  and %d more\n", more)
	}
	text.WriteString("the new ones are live\n")
	if _, err := io.WriteString(w, text.String()); err != nil {
		return fmt.Errorf("print what was found: %w", err)
	}
	return nil
}
