package e2e_test

import (
	"testing"
	"time"
)

// TestIdle_workersCostTheDatabaseLittle: an idle worker polls, and no worker leads.
func TestIdle_workersCostTheDatabaseLittle(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	const workers = 10
	d := deploy(t, setup{workers: workers, workerEnv: map[string]string{"LEASE": "3s"}})
	const measured = 20 * time.Second
	<-time.After(measured / 2) // each has looked at everything once
	const transactions = `select xact_commit + xact_rollback from pg_stat_database where datname = current_database()`
	before := row[int64](t, d, transactions)
	<-time.After(measured)
	each := float64(row[int64](t, d, transactions)-before) / measured.Seconds() / workers
	t.Logf("%d idle workers: %.1f transactions a second each", workers, each)
	if each > 5 {
		t.Errorf("an idle worker runs %.1f transactions a second", each)
	}
}
