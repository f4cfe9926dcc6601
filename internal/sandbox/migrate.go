package sandbox

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrate brings the sandbox's own database at url to the schema of this program.
// Several programs may run it at the same time. It never goes back.
func Migrate(ctx context.Context, url string) error {
	settings, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("migrate the sandbox: %w", err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("open the sandbox's migrations: %w", err)
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60))
	if err != nil {
		return fmt.Errorf("make the migration lock: %w", err)
	}
	db := stdlib.OpenDB(*settings)
	defer db.Close() //nolint:errcheck // nothing is in flight
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithSessionLocker(locker), goose.WithTableName("sandbox_migrations"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read the sandbox's migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate the sandbox: %w", err)
	}
	return nil
}
