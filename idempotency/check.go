package idempotency

import (
	"context"
	_ "embed"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/schemacheck"
)

// tables describes what Schema creates: go test ./internal/schemacheck -update.
//
//go:embed schema.txt
var tables string

// Check returns nil if the search_path of the pool finds what Schema creates. Otherwise its
// one error names everything that is missing or different: tables, views, columns with type,
// collation and default, constraints and unique indexes. It says so if the tables are in a
// schema that the search_path leaves out. It wraps an error of the database.
//
// Check reads catalogs alone, so it needs no rights, and does not say whether the role has
// those that the package needs. Further columns, constraints and indexes are accepted.
func Check(ctx context.Context, pool *pgxpool.Pool) error {
	return schemacheck.Check(ctx, pool, "idempotency", tables)
}
