package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/migrations"
	"github.com/payonce/payonce/migrations/version"
)

type migrateCmd struct {
	JSON bool `name:"json" help:"Print the schema's version as JSON."`
}

// Run checks the server by opening it before it changes anything.
func (c migrateCmd) Run(ctx context.Context) error {
	return withDB(ctx, postgres.Options{}, func(db *postgres.DB) error {
		return c.migrate(ctx, os.Stdout, db, db.Pool().Config().ConnString())
	})
}

func (c migrateCmd) migrate(ctx context.Context, w io.Writer, db *postgres.DB, url string) error {
	if err := migrations.Up(ctx, url); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "the schema is up to date")
	if !c.JSON {
		return nil
	}
	applied, err := version.Of(ctx, db)
	if err != nil {
		return err
	}
	return printJSON(w, migrated{Version: applied})
}

// migrated is printed as JSON.
type migrated struct {
	Version int64 `json:"version"` // of the newest migration
}
