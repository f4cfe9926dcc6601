package sandbox

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrationLock is the advisory lock that one start at a time holds.
const migrationLock = 7_051_994_310

const lockMigrations = `select pg_advisory_lock($1)`

// Migrate brings the sandbox's own database at url to the schema of this
// program. Starts that do so at once wait for one another. It never goes back.
func Migrate(ctx context.Context, url string) error {
	settings, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("migrate the sandbox: %w", err)
	}
	// The lock is the session's: it ends with the connection, however that ends.
	guard, err := pgx.ConnectConfig(ctx, settings)
	if err != nil {
		return fmt.Errorf("migrate the sandbox: %w", err)
	}
	defer guard.Close(context.WithoutCancel(ctx)) // the lock goes either way
	if _, err := guard.Exec(ctx, lockMigrations, migrationLock); err != nil {
		return fmt.Errorf("lock the sandbox's migrations: %w", err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("open the sandbox's migrations: %w", err)
	}
	db := stdlib.OpenDB(*settings)
	defer db.Close() //nolint:errcheck // nothing is under way
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName("sandbox_migrations"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read the sandbox's migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate the sandbox: %w", err)
	}
	return nil
}
