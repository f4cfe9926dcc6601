package pgtest

import (
	"testing"
	"time"

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
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var is bool
		err := db.QueryRow(tb.Context(), alone).Scan(&is)
		if err == nil && is {
			return
		}
		select {
		case <-deadline:
			tb.Fatalf("others are connected after %v, %v", patience, err)
		case <-tick.C:
		}
	}
}
