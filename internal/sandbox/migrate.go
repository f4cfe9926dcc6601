package sandbox

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5"
)

//go:embed schema.sql
var schema string

const (
	lockMigration = `select pg_advisory_xact_lock(hashtext('sandbox migration'))`
	hasTables     = `select to_regclass('requests') is not null`
)

// Migrate creates the sandbox's tables in its own database at url, unless they are there.
// Several programs may run it at the same time.
func Migrate(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("migrate the sandbox: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // nothing is in flight
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockMigration); err != nil {
			return err
		}
		var there bool
		if err := tx.QueryRow(ctx, hasTables).Scan(&there); err != nil || there {
			return err
		}
		_, err := tx.Exec(ctx, schema)
		return err
	})
	if err != nil {
		return fmt.Errorf("migrate the sandbox: %w", err)
	}
	return nil
}
