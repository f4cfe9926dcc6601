package e2e_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/migrations/version"
)

// TestUpgrade_oldAndNewProgramsWorkSideBySide rolls a version out that has one more migration,
// under traffic: the old programs go on with the new schema, then both work on it, a worker of
// each version is killed, and the old ones stop.
func TestUpgrade_oldAndNewProgramsWorkSideBySide(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 1})
	next := nextVersion(t)

	if _, err := d.Start(bounded(t), "too-early", next.Worker, d.workerSettings(0)); err == nil {
		t.Fatal("a new worker starts on the old schema")
	}
	f := d.flowing(t, 60, 8, visa)
	f.awaitAnswered(t, 10)
	old := d.Binaries
	d.Binaries = next
	d.payonce(t, "migrate")
	d.Binaries = old
	f.finish(t, d) // by the old programs

	apis, err := d.StartAll(bounded(t), "new-api", next.API, 1, func(int) map[string]string {
		env := d.APIEnv()
		d.server.unprivileged(env, "api")
		return env
	})
	must(t, err)
	workers, err := d.StartAll(bounded(t), "new-worker", next.Worker, 1, d.workerSettings)
	must(t, err)
	oldAPI, oldWorker := d.APIs[0], d.Workers[0]
	d.APIs, d.Workers = append(d.APIs, apis...), append(d.Workers, workers...)
	d.client.apis = append(d.client.apis, apis[0].URL())
	f = d.flowing(t, 120, 8, visa)
	f.awaitAnswered(t, 40)
	kill(t, oldWorker)
	restart(t, oldWorker)
	f.awaitAnswered(t, 80)
	kill(t, workers[0])
	restart(t, workers[0])
	f.finish(t, d)

	stop(t, oldAPI, oldWorker)
	d.APIs, d.Workers, d.client.apis = apis, workers, []string{apis[0].URL()}
	d.flowing(t, 20, 4, visa).finish(t, d)
}

// nextVersion builds programs that need one more migration than this version.
func nextVersion(t *testing.T) harness.Binaries {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
	defer cancel()
	last := fmt.Sprintf(`{%d, "service", service},`, version.Latest)
	added := fmt.Sprintf(` {%d, "next", "alter table account_balances add column note text; create index account_balances_note on account_balances (note)"},`, version.Latest+1)
	next, err := harness.Build(ctx, t.TempDir(), "-overlay="+overlay(t, []edit{
		{"migrations/version/version.go", fmt.Sprint("const Latest = ", version.Latest), fmt.Sprint("const Latest = ", version.Latest+1)},
		{"migrations/migrations.go", last, last + added},
	}))
	must(t, err)
	return next
}
