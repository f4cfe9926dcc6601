// Package migrations holds payonce's schema as numbered SQL, embedded in the
// programs. Each file opens with the promise that its tables carry; the
// constraints in them are the guards that docs/design.md lists.
//
// Migrations go forward only. Several programs may run Up at once: one works,
// the others wait for it.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/payonce/payonce/internal/postgres"
)

//go:embed *.sql
var files embed.FS

// FS is the numbered SQL itself.
func FS() fs.FS { return files }

// lockTimeout is how long a migration waits for a table that somebody uses, in
// milliseconds. Whoever wants the table meanwhile stands behind it.
const lockTimeout = "10000"

// Up applies every migration that the database at url does not have yet, each in a
// transaction of its own. One that fails is rolled back as a whole, and those
// before it stay. One that waits longer than ten seconds for a table fails, unless
// url says otherwise (lock_timeout).
//
// It refuses tables that were restored before the roles were there, whose rights no
// migration gives back.
func Up(ctx context.Context, url string) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("open the database to migrate: %w", err)
	}
	if config.RuntimeParams["lock_timeout"] == "" {
		config.RuntimeParams["lock_timeout"] = lockTimeout
	}
	db := stdlib.OpenDB(*config)
	defer func() { _ = db.Close() }() // only read from: a failed close loses nothing
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60))
	if err != nil {
		return fmt.Errorf("make the migration lock: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithSessionLocker(locker), goose.WithTableName(versionTable))
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return granted(ctx, db)
}

// Without a role it is null.
const selectGranted = `
select coalesce(has_table_privilege(to_regrole('payonce_api'), 'schema_migrations', 'select')
            and has_table_privilege(to_regrole('payonce_worker'), 'schema_migrations', 'select'), false)`

func granted(ctx context.Context, db *sql.DB) error {
	var granted bool
	if err := db.QueryRowContext(ctx, selectGranted).Scan(&granted); err != nil {
		return fmt.Errorf("look for the rights of the roles: %w", err)
	}
	if !granted {
		return errors.New("the roles payonce_api and payonce_worker have no rights here: the tables were restored before the roles were made, so make them and restore again")
	}
	return nil
}

const versionTable = "schema_migrations"

const appliedVersion = `
select coalesce(max(version_id), 0)
  from schema_migrations
 where is_applied`

// Version is the number of the newest migration that a migrated database has.
func Version(ctx context.Context, q postgres.Querier) (version int64, err error) {
	if err := q.QueryRow(ctx, appliedVersion).Scan(&version); err != nil {
		return 0, fmt.Errorf("read the schema's version: %w", err)
	}
	return version, nil
}

// Pending tells whether the database lacks a migration that this program
// carries. A newer database is not pending: old programs run on through an upgrade.
func Pending(ctx context.Context, q postgres.Querier) (bool, error) {
	rows, err := q.Query(ctx, `select to_regclass('schema_migrations') is not null`)
	if err != nil {
		return false, fmt.Errorf("look for the schema: %w", err)
	}
	exists, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool])
	if err != nil {
		return false, fmt.Errorf("look for the schema: %w", err)
	}
	if !exists {
		return true, nil
	}
	applied, err := Version(ctx, q)
	if err != nil {
		return false, err
	}
	latest, err := latest()
	return applied < latest, err
}

func latest() (int64, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return 0, fmt.Errorf("list the migrations: %w", err)
	}
	var newest int64
	for _, name := range names {
		number, _, _ := strings.Cut(name, "_")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("migration %s has no number: %w", name, err)
		}
		newest = max(newest, n)
	}
	return newest, nil
}
