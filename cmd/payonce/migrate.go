package main

import (
	"context"
	"fmt"
	"os"

	"github.com/payonce/payonce/internal/config"
	"github.com/payonce/payonce/migrations"
)

type migrateCmd struct{}

// Run checks the server by opening it before it changes anything.
func (migrateCmd) Run(ctx context.Context) error {
	db, err := open(ctx)
	if err != nil {
		return err
	}
	db.Close()
	env, err := config.Load[environment]()
	if err != nil {
		return err
	}
	if err := migrations.Up(ctx, env.DatabaseURL.Reveal()); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "the schema is up to date")
	return nil
}
