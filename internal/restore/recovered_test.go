package restore_test

import (
	"testing"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/testdb"
)

// TestRecovered reads as a worker, whose rights suffice, after what a promotion, a restore or time
// leaves in the table.
func TestRecovered(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	recovered := restore.NewRecovered(testdb.As(t, db, postgres.RoleWorker))
	for _, step := range []struct {
		name, sql string
		want      bool
	}{
		{"a new database", ``, false},
		{"another history, as after a promotion", `update recoveries set history = 'another'`, true},
		{"the same history later", ``, true},
		{"eight days later", `update recoveries set recovered_at = recovered_at - interval '8 days'`, false},
		{"a repair", `repair`, true},
	} {
		var err error
		if step.sql == "repair" {
			_, err = restore.Repair(t.Context(), db)
		} else {
			_, err = db.Pool().Exec(t.Context(), step.sql)
		}
		testdb.Must(t, err)
		if got, err := recovered(t.Context()); got != step.want || err != nil {
			t.Errorf("%s: recovered is %t, want %t: %v", step.name, got, step.want, err)
		}
	}
}
