// Package version compares the schema of a database with the one that a program needs.
//
// It is apart from package migrations so that a service which only checks its database does
// not link the SQL of all packages, and the packages with it.
package version

import (
	"context"
	"fmt"

	"github.com/payonce/payonce/internal/postgres"
)

// Latest is the number of the newest migration that this program needs.
const Latest = 38

const appliedVersion = `
-- version.appliedVersion
select coalesce(max(version_id), 0)
  from payonce_migrations
 where is_applied`

// Of returns the number of the newest migration that a database has, 0 for none.
func Of(ctx context.Context, q postgres.Querier) (version int64, err error) {
	var exists bool
	err = q.QueryRow(ctx, `-- version.Of
select to_regclass('payonce_migrations') is not null`).Scan(&exists)
	if err == nil && exists {
		err = q.QueryRow(ctx, appliedVersion).Scan(&version)
	}
	if err != nil {
		return 0, fmt.Errorf("read the schema's version: %w", err)
	}
	return version, nil
}

// Pending reports whether the database lacks a migration that this program needs. A newer
// database is not pending: old programs run on through an upgrade.
func Pending(ctx context.Context, q postgres.Querier) (bool, error) {
	applied, err := Of(ctx, q)
	return applied < Latest, err
}
