package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/fleet"
	"github.com/payonce/payonce/internal/postgres/local"
)

// TestRestore dumps the service's database while charges are under way, and
// restores it into another server. The worker says what is wrong and carries
// nothing until the operator repairs; then everything is carried, what came before
// the dump and what was accepted since the restore.
func TestRestore(t *testing.T) {
	t.Parallel()
	long(t)
	needTools(t)
	t.Run("into a server that has had fewer transactions", func(t *testing.T) {
		t.Parallel()
		restoreElsewhere(t, 20_000, 0)
	})
	t.Run("into a server that has had more transactions", func(t *testing.T) {
		t.Parallel()
		restoreElsewhere(t, 0, 20_000)
	})
}

// count lets a server have so many transactions more.
func (s server) count(t *testing.T, transactions int) {
	t.Helper()
	s.command(t, fmt.Sprintf(`do $$ begin for i in 1..%d loop perform pg_current_xact_id(); commit; end loop; end $$`, transactions))
}

func restoreElsewhere(t *testing.T, before, there int) {
	t.Helper()
	_, fresh := ownServer(t, local.Options{Fsync: true}) // before the world, which is judged while it is there
	moved := fresh.database(t, "restored")
	tables := openTables(t, moved)
	_, old := ownServer(t, local.Options{Fsync: true})
	old.count(t, before)
	fresh.count(t, there)
	w := newWorld(t, setup{apis: 1, workers: 1, server: old})
	for range 3 {
		w.carry(t, newOrder(visa))
	}
	given := w.refund(t, w.paid(t, visa).ID, 400)
	w.settled(t, given)
	w.breakOutside(t, faults{DropBefore: 1})
	var charges []charge
	for range 3 {
		charges = append(charges, w.send(t, newOrder(visa)))
	}
	for _, p := range []*fleet.Process{w.workers[0], w.apis[0]} {
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	w.mendOutside(t)

	for _, role := range []string{"payonce_api", "payonce_worker"} {
		fresh.command(t, "create role "+role+" nologin")
	}
	w.moveTo(t, moved)
	w.tables = tables
	worker := w.workers[0]
	if code, body := readiness(t, worker); code != http.StatusServiceUnavailable || !strings.Contains(body, "payonce outbox repair") {
		t.Errorf("the worker's readiness is %d %s", code, body)
	}
	since := w.send(t, newOrder(visa)) // the api does not know
	charges = append(charges, since)

	var report struct {
		Before struct {
			Own          bool
			Newest, Next int64
		}
		Repaired struct{ Events, Messages, Received int64 }
	}
	const received = `
select i.message_id
  from inbox i
  join ledger_events e
    on e.event_id::text = i.message_id
 where e.stream_id = $1`
	if early := rows[string](t, w, received, since.ID); len(early) > 0 {
		t.Errorf("%v were received before the repair", early)
	}
	if err := json.Unmarshal(w.payonce(t, "outbox", "repair", "--json"), &report); err != nil || report.Before.Own || (report.Before.Newest < report.Before.Next) != (before < there) {
		t.Fatalf("%v: %+v", err, report)
	}
	t.Logf("%+v", report)
	if report.Repaired.Events == 0 || report.Repaired.Messages == 0 || report.Repaired.Received == 0 {
		t.Errorf("repaired %+v", report.Repaired)
	}
	if !within(endPatience, func() bool { code, _ := readiness(t, worker); return code == http.StatusOK }) { // an answer holds for a second
		t.Error("the worker is not ready after the repair")
	}
	for _, c := range charges {
		if got := w.await(t, c.ID); got.Status != "succeeded" {
			t.Errorf("charge %s is %s", c.ID, got.Status)
		}
	}
	if out, err := w.run(t, "outbox", "repair"); exitCode(err) != 1 {
		t.Errorf("a second repair: %v, %s", err, out)
	}
	w.carry(t, newOrder(visa))
	if out, err := w.run(t, "rebuild", "--json"); exitCode(err) != 0 {
		t.Errorf("a rebuild found the projections to differ: %v, %s", err, out)
	}
}

// moveTo dumps the service's database, restores it into another one, and starts
// an api and a worker on that. The worker is not waited for.
func (w *world) moveTo(t *testing.T, moved string) {
	t.Helper()
	restoreInto(t, moved, dump(t, w.database))
	w.database = moved
	w.apis[0] = w.start(t, "api-restored", binaries(t).API, map[string]string{"DATABASE_URL": moved, "STRIPE_WEBHOOK_SECRET": w.keys.events})
	if w.apis[0] == nil {
		t.FailNow()
	}
	w.client.apis = []string{w.apis[0].URL()}

	const name = "worker-restored"
	env := maps.Clone(w.workerSettings(0))
	env[quietProgram], env[quietStdout] = binaries(t).Worker, w.stdout(name)
	ctx, cancel := context.WithTimeout(t.Context(), startPatience)
	defer cancel()
	worker, err := fleet.Start(ctx, fleet.Program{Name: name, Path: binaries(t).quiet, Env: env, Log: w.log})
	if err != nil {
		t.Fatal(err)
	}
	w.workers[0] = worker
	if !within(endPatience, func() bool { return strings.Contains(worker.Tail(), "payonce outbox repair") }) {
		t.Errorf("the worker does not log what is wrong:\n%s", worker.Tail())
	}
}

// dump writes a database into a file, as of now.
func dump(t *testing.T, database string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "dump")
	tool(t, "pg_dump", "--format=custom", "--file="+file, database)
	return file
}

func restoreInto(t *testing.T, database, file string) {
	t.Helper()
	tool(t, "pg_restore", "--exit-on-error", "--no-owner", "--dbname="+database, file)
}

func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// needTools skips where a dump cannot be made.
func needTools(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"pg_dump", "pg_restore"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("not run: there is no %s", tool)
		}
	}
}

// TestRestoreOfThePast restores a dump that is older than what the provider has
// done since, beside the database that is lost. A payment that was made since is found by its
// charge, if the dump has that, and is not made again. Of a payment whose charge is
// gone only the provider knows, and the audit says so before anything is started.
func TestRestoreOfThePast(t *testing.T) {
	t.Parallel()
	long(t)
	needTools(t)
	w := newWorld(t, setup{apis: 1, workers: 1, alone: true})
	moved := w.server.database(t, "restored")
	before := w.carry(t, newOrder(visa))
	w.breakOutside(t, faults{DropBefore: 1})
	open := w.send(t, newOrder(visa))
	w.waitMore(t)
	file := dump(t, w.database)
	w.mendOutside(t)
	if got := w.await(t, open.ID); got.Status != "succeeded" {
		t.Fatalf("the charge is %s", got.Status)
	}
	given := w.refund(t, before.ID, 400)
	w.settled(t, given)
	lost := w.carry(t, newOrder(visa))
	for _, p := range []*fleet.Process{w.workers[0], w.apis[0]} {
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}

	restoreInto(t, moved, file)
	w.database, w.tables = moved, openTables(t, moved)
	w.payonce(t, "outbox", "repair")
	out, err := w.run(t, "audit", "--quiet")
	for _, id := range []string{lost.ID, open.ID, given.ID} {
		if !strings.Contains(string(out), id) || exitCode(err) != 1 {
			t.Errorf("the audit does not name %s: %v\n%s", id, err, out)
		}
	}

	w.startServices(t)
	if got := w.await(t, open.ID); got.Status != "succeeded" {
		t.Errorf("the charge that was open in the dump is %s", got.Status)
	}
	if got := w.carry(t, newOrder(visa)); got.Status != "succeeded" {
		t.Errorf("a new charge is %s", got.Status)
	}
	taken := map[string]int{}
	for _, c := range w.books(t).Captures {
		taken[c.Reference]++
	}
	for _, id := range []string{before.ID, open.ID, lost.ID} {
		if taken[id] != 1 {
			t.Errorf("%s was captured %d times", id, taken[id])
		}
	}
	out, err = w.run(t, "audit", "--quiet")
	if strings.Contains(string(out), open.ID) || !strings.Contains(string(out), lost.ID) || exitCode(err) != 1 {
		t.Errorf("the audit says at last: %v\n%s", err, out)
	}
	w.client = nil // what is lost stays lost, and a world would be judged for it
}

// readiness asks a program whether it can work.
func readiness(t *testing.T, p *fleet.Process) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL()+"/readyz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}
