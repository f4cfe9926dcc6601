package e2e_test

import (
	"os"
	"strconv"
	"strings"
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
	transactions, used := d.databaseCost(t)
	<-time.After(measured)
	now, usedNow := d.databaseCost(t)
	each := float64(now-transactions) / measured.Seconds() / workers
	share := (usedNow - used).Seconds() / measured.Seconds()
	t.Logf("%d idle workers: %.1f transactions a second each, together %.1f %% of a core", workers, each, 100*share)
	if each > 5 {
		t.Errorf("an idle worker runs %.1f transactions a second", each)
	}
}

// databaseCost is what the sessions of the database have run and used since they began.
func (d *deployment) databaseCost(t *testing.T) (transactions int64, used time.Duration) {
	t.Helper()
	var pids []string
	must(t, d.tables.QueryRow(t.Context(), `
select (select xact_commit + xact_rollback from pg_stat_database where datname = current_database()), array_agg(pid::text)
  from pg_stat_activity
 where datname = current_database()`).Scan(&transactions, &pids))
	for _, pid := range pids {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[strings.LastIndex(string(stat), ")")+1:]))
		for _, ticks := range fields[11:13] { // utime and stime, in hundredths of a second
			n, err := strconv.Atoi(ticks)
			must(t, err)
			used += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return transactions, used
}
