package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

// effects is a database with one table: an id once, and a twin that is checked
// as late as the commit.
func effects(t *testing.T, o postgres.Options) (db *postgres.DB, address string) {
	t.Helper()
	address = testdb.URL(t)
	db = testdb.OpenAt(t, address, o)
	testdb.Exec(t, db.Pool(), `
create table effects (
  id   int primary key,
  twin int,
  constraint effects_twin_once unique (twin) deferrable initially deferred
)`)
	return db, address
}

func effect(id int) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(`insert into effects (id) values ($1)`, id)
	return b
}

func want[T any](t *testing.T, db *postgres.DB, sql string, want ...T) {
	t.Helper()
	testrun.Same(t, sql, want, testdb.All[T](t, db, sql))
}

func TestMain(m *testing.M) { testrun.Main(m) }
