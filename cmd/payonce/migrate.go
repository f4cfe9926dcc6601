package main

import (
	"context"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/migrations"
	"github.com/payonce/payonce/migrations/version"
)

type migrateCmd struct {
	JSON bool `name:"json" help:"Print the schema's version as JSON."`
}

// run migrates a server that was checked when it was opened.
func (m migrateCmd) run(ctx context.Context, c *console, db *postgres.DB) error {
	if err := migrations.Up(ctx, db.Pool().Config().ConnString()); err != nil {
		return err
	}
	c.stderr.printf("the schema is up to date\n")
	if !m.JSON {
		return nil
	}
	applied, err := version.Of(ctx, db)
	if err != nil {
		return err
	}
	c.stdout.json(migrated{Version: applied})
	return nil
}

// migrated is printed as JSON.
type migrated struct {
	Version int64 `json:"version"` // of the newest migration
}
