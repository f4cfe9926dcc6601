package idempotency

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/schemacheck"
)

// tables describes what Schema creates. It is generated:
//
//	go test ./internal/schemacheck -update
//
//go:embed schema.txt
var tables string

// Check returns nil if the search_path of the pool finds the tables and views that Schema
// creates. Otherwise its one error names everything that is missing or different: tables,
// views, columns with their type, collation and default, constraints and unique indexes. It
// says so if the tables are in a schema that the search_path does not search. A nil pool is
// an error, and an error of the database is wrapped.
//
// Check reads catalogs alone: it needs no right on the tables, and does not check that the
// role has those which the package needs. It accepts further columns, constraints and
// indexes.
func Check(ctx context.Context, pool *pgxpool.Pool) error {
	if err := schemacheck.Check(ctx, pool, tables); err != nil {
		return fmt.Errorf("check the idempotency keys: %w", err)
	}
	return nil
}
