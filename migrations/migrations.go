// Package migrations brings a database to payonce's schema.
//
// Each package keeps the SQL of its tables beside its code, in a file that opens with
// the promise that the tables carry; this package puts the files in order. Its own file,
// service.sql, holds what belongs to no single package: roles, grants, row-level security,
// foreign keys between packages, retention. The constraints in these files are the guards
// that docs/reference/guards.md lists.
//
// Migrations go forward only. Several programs may run Up at the same time: one works and
// the others wait for it.
package migrations

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	fulfillment "github.com/payonce/payonce/fulfillment/schema"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	audit "github.com/payonce/payonce/internal/audit/schema"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

//go:embed service.sql
var service string

// Migration is one step of the schema.
type Migration struct {
	Version int64  // its number in payonce_migrations
	Name    string // the package that owns the tables
	SQL     string
}

// All returns the migrations in the order in which Up applies them.
//
// Numbers 1 to 30 were used before v0.2.0.
func All() []Migration {
	return []Migration{
		{31, "idempotency", idempotency.Schema()},
		{32, "inbox", inbox.Schema()},
		{33, "outbox", outbox.Schema()},
		{34, "ledger", ledger.Schema()},
		{35, "merchants", merchants.Schema()},
		{36, "fulfillment", fulfillment.SQL()},
		{37, "audit", audit.SQL()},
		{38, "service", service},
	}
}

// lockTimeout is how long a migration waits for a table that another session uses, in
// milliseconds. Sessions that want the table meanwhile wait behind the migration.
const lockTimeout = "10000"

// Up applies every migration that the database at url does not have yet, each in a
// transaction of its own. A migration that fails is rolled back as a whole, and those
// before it stay. A migration that waits longer than ten seconds for a table fails,
// unless url says otherwise (lock_timeout).
//
// It refuses tables that were restored before the roles existed, because no migration restores
// the rights of the roles.
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
	if err := apply(ctx, db, All()); err != nil {
		return err
	}
	return granted(ctx, db)
}

func apply(ctx context.Context, db *sql.DB, all []Migration) error {
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60))
	if err != nil {
		return fmt.Errorf("make the migration lock: %w", err)
	}
	steps := make([]*goose.Migration, len(all))
	for i, m := range all {
		run := func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, m.SQL); err != nil {
				return fmt.Errorf("create the tables of %s: %w", m.Name, err)
			}
			return nil
		}
		steps[i] = goose.NewGoMigration(m.Version, &goose.GoFunc{RunTx: run}, nil)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, nil,
		goose.WithSessionLocker(locker), goose.WithTableName(versionTable), goose.WithGoMigrations(steps...))
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// selectGranted asks whether the roles may read the table of versions. Without a role it is
// null.
const selectGranted = `
-- migrations.selectGranted
select coalesce(has_table_privilege(to_regrole('payonce_api'), 'payonce_migrations', 'select')
            and has_table_privilege(to_regrole('payonce_worker'), 'payonce_migrations', 'select')
            and has_table_privilege(to_regrole('payonce_console'), 'payonce_migrations', 'select'), false)`

func granted(ctx context.Context, db *sql.DB) error {
	var granted bool
	if err := db.QueryRowContext(ctx, selectGranted).Scan(&granted); err != nil {
		return fmt.Errorf("look for the rights of the roles: %w", err)
	}
	if !granted {
		return errors.New("the roles payonce_api, payonce_worker and payonce_console have no rights here: the tables were restored before the roles were made, so make them and restore again")
	}
	return nil
}

// versionTable is not schema_migrations, which an application that shares the database may
// have for its own migrations.
const versionTable = "payonce_migrations"
