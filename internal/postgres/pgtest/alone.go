package pgtest

import (
	"testing"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
)

const alone = `
select not exists (
    select 1
      from pg_stat_activity
     where datname = current_database()
       and pid <> pg_backend_pid())`

// Alone waits until the session that asks is the only one in a database: what a
// session did is in PostgreSQL's statistics when it has ended.
func Alone(tb testing.TB, db *postgres.DB) {
	tb.Helper()
	await.Row(tb, db, alone)
}
