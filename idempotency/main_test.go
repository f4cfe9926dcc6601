package idempotency_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// openPool is a pool on a database of its own for an example. It has the tables of
// idempotency.Schema and of createSales.
func openPool() (pool *pgxpool.Pool, end func()) {
	db, end := testdb.Example()
	if _, err := db.Pool().Exec(context.Background(), createSales); err != nil {
		panic(err)
	}
	return db.Pool(), end
}
