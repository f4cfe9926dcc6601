package outbox

import (
	"context"
	_ "embed"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/schemacheck"
)

var (
	//go:embed schema.sql
	schema string
	//go:embed schema.txt
	tables string // for Check: go test ./internal/schemacheck -update
)

// Schema returns the SQL that creates outbox, outbox_offsets and numbering_mark in the first schema of
// the search_path. goose and psql apply it as it is, once, in a transaction. It has no way down.
func Schema() string { return schema }

// Check returns nil if the search_path of the pool finds what Schema creates. Otherwise its one
// error names everything that is missing or different, and what is in a schema that the
// search_path leaves out. It reads catalogs alone, so it needs no rights and checks none.
// Further columns, constraints and indexes are accepted.
func Check(ctx context.Context, pool *pgxpool.Pool) error {
	return schemacheck.Check(ctx, pool, "outbox", tables)
}
