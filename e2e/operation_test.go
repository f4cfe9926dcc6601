package e2e_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/migrations/version"
)

func isConfirm(c *failpoint.Call) bool { return strings.HasSuffix(c.Request.URL.Path, "/confirm") }

// TestWorker_killedAfterCapture_chargesOnce kills the worker when the provider has
// captured the payment and the worker has not read the answer. TestWalk kills at
// every other round trip.
func TestWorker_killedAfterCapture_chargesOnce(t *testing.T) {
	startsPrograms(t)
	t.Parallel()
	var d *deployment
	var confirms atomic.Int32
	killed := make(chan error, 1)
	d = deploy(t, setup{apis: 1, workers: 2, gate: func(c *failpoint.Call) failpoint.Fault {
		if isConfirm(c) && c.Side == failpoint.After && confirms.Add(1) == 1 {
			killed <- d.Workers[0].Kill()
			return failpoint.Cut
		}
		return failpoint.None
	}})
	stop(t, d.Workers[1])
	id := d.send(t, newOrder(visa)).ID
	must(t, testrun.Receive(t, "the worker confirms the payment", killed))
	restart(t, d.Workers[1])
	d.mustSucceed(t, id)
	if n := confirms.Load(); n != 1 { // the second worker reads the payment's state
		t.Errorf("the payment was confirmed %d times", n)
	}
	mustRead(t, d.tables, true, `select status = 'done' and attempts >= 2 and fence >= 2 and done_fence = fence
  from inbox where ordering_key = $1 and receiver = 'fulfillment'`, id)
}

// TestWorker_SIGTERM_releasesItsMessages stops a worker while the provider does not
// answer it. Where the machine is so slow that the call ends before the worker's time to
// drain, another worker is stopped.
func TestWorker_SIGTERM_releasesItsMessages(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	hanging := make(chan struct{})
	var answers atomic.Bool
	longLease := map[string]string{"LEASE": "2m"} // a machine that stalls for a second costs no attempt
	d := deploy(t, setup{apis: 1, workers: 1, workerEnv: longLease, gate: func(c *failpoint.Call) failpoint.Fault {
		if answers.Load() || !isConfirm(c) {
			return failpoint.None
		}
		select {
		case hanging <- struct{}{}:
			<-t.Context().Done()
		case <-t.Context().Done():
		}
		return failpoint.Cut
	}})
	id := d.send(t, newOrder(visa)).ID
	const timeOuts = 3
	for waits := range timeOuts {
		testrun.Receive(t, "the worker confirms the payment", hanging)
		stop(t, d.Workers[0])
		if row[int](t, d.tables, `select waits from inbox where ordering_key = $1`, id) == waits {
			break
		}
		restart(t, d.Workers[0])
	}
	mustRead(t, d.tables, "pending 0 t", `select concat_ws(' ', status, attempts, due_at <= clock_timestamp()) from inbox where ordering_key = $1`, id)
	answers.Store(true)
	restart(t, d.Workers[0])
	d.mustSucceed(t, id)
}

// TestIdle_workersCostTheDatabaseLittle: an idle worker polls, and no worker leads.
func TestIdle_workersCostTheDatabaseLittle(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	const workers = 5
	d := deploy(t, setup{workers: workers, workerEnv: map[string]string{"LEASE": "3s"}})
	const settled = 12 * time.Second // at first each looks at everything once, and statistics come up to 10 s late
	const measured = 10 * time.Second
	const transactions = `select xact_commit + xact_rollback from pg_stat_database where datname = current_database()`
	<-time.After(settled)
	for range 8 { // beside autovacuum, and where a busy machine lets connections rest until they are pinged, some have more
		before := row[int64](t, d.tables, transactions)
		<-time.After(measured)
		each := float64(row[int64](t, d.tables, transactions)-before) / measured.Seconds() / workers
		t.Logf("%d idle workers: %.1f transactions a second each", workers, each)
		if each <= 5 {
			return
		}
	}
	t.Error("an idle worker runs more than five transactions a second")
}

// TestUpgrade_oldAndNewProgramsWorkSideBySide rolls a version out that has one more migration,
// under traffic: the old programs go on with the new schema, then both work on it, a worker of
// each version is killed, and the old ones stop.
func TestUpgrade_oldAndNewProgramsWorkSideBySide(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{apis: 1, workers: 1})
	next := nextVersion(t)

	if _, err := d.Start(bounded(t), "early-worker", next.Worker, d.WorkerEnv()); err == nil || !strings.Contains(err.Error(), "lacks a migration") {
		t.Fatalf("a new worker starts on the old schema: %v", err)
	}
	f := d.flowing(t, 30, 8, visa)
	d.accepts(t, 5)
	old := d.Binaries
	d.Binaries = next
	d.payonce(t, "migrate")
	d.Binaries = old
	f.finish(t, d)
	d.flowing(t, 10, 4, visa).finish(t, d) // by the old programs, on the new schema

	d.Binaries = next
	apis, err := d.StartAll(bounded(t), "new-api", d.API, 1, d.APIEnv)
	must(t, err)
	workers, err := d.StartAll(bounded(t), "new-worker", d.Worker, 1, d.WorkerEnv)
	must(t, err)
	oldAPI, oldWorker := d.APIs[0], d.Workers[0]
	d.APIs, d.Workers = append(d.APIs, apis...), append(d.Workers, workers...)
	d.client.APIs = append(d.client.APIs, apis[0].URL())
	f = d.flowing(t, 60, 8, visa)
	d.accepts(t, 60)
	kill(t, oldWorker)
	restart(t, oldWorker)
	d.accepts(t, 80)
	kill(t, workers[0])
	restart(t, workers[0])
	f.finish(t, d)

	stop(t, oldAPI, oldWorker)
	d.APIs, d.Workers, d.client.APIs = apis, workers, []string{apis[0].URL()}
	d.flowing(t, 10, 4, visa).finish(t, d)
}

// nextVersion builds programs that need one more migration than this version.
func nextVersion(t *testing.T) harness.Binaries {
	t.Helper()
	last := fmt.Sprintf(`{%d, "service", service},`, version.Latest)
	added := fmt.Sprintf(` {%d, "next", "alter table account_balances add column note text; create index account_balances_note on account_balances (note)"},`, version.Latest+1)
	next, err := build("next", "-overlay="+overlay(t, []edit{
		{"migrations/version/version.go", fmt.Sprint("const Latest = ", version.Latest), fmt.Sprint("const Latest = ", version.Latest+1)},
		{"migrations/migrations.go", last, last + added},
	}))
	must(t, err)
	return next
}

const (
	nothingKept = `
select not exists (select from outbox)
   and not exists (select from inbox where type not like 'stripe.%')
   and not exists (select from idempotency_keys where body is not null)`

	selectReference = `select data ->> 'reference' from ledger_events where version = 1 and stream_id = $1`

	// How many events of each type there are.
	ledger = `select json_object_agg(type, n order by type)::text from (select type, count(*) as n from ledger_events group by type) as counted`
)

// TestRetention_redeliveryAfterExpiry_changesNothing removes what has expired while charges flow, and
// then delivers all of it again. The invariants are checked at the end: the merchant was notified once.
// With -every a data race of the api or the worker fails it.
func TestRetention_redeliveryAfterExpiry_changesNothing(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	d := deploy(t, setup{
		apis: 2, workers: 2, providerEvents: true, detectRaces: true,
		apiEnv:    map[string]string{"IDEMPOTENCY_RETENTION": "5s"},
		workerEnv: map[string]string{"INBOX_RETENTION": "2s"},
	})
	// What leaves the outbox is copied here, as a backup would have it.
	execute(t, d.tables, `
create table backup as select topic, message_id, payload, metadata from outbox;
create function copy() returns trigger language plpgsql security definer as $$
begin
  insert into backup values (old.topic, old.message_id, old.payload, old.metadata);
  return null;
end $$;
create trigger copy after delete on outbox for each row execute function copy()`)

	n := 32
	f := d.flowing(t, n, 4, visa, cardDeclined)
	d.accepts(t, n/2)
	kill(t, d.Workers[0])
	restart(t, d.Workers[0])
	f.all.Wait()
	d.drain(t)
	testrun.Row(t, d.tables, nothingKept)
	const copied = `select count(*) from backup`
	if got := row[int](t, d.tables, copied); got < 2*n {
		t.Errorf("%d messages have gone through the outbox, want at least %d", got, 2*n)
	}

	if got := d.insist(t, f.requests[0]); got.Status != http.StatusGone || !strings.Contains(string(got.Body), "/problems/idempotency-key-expired") {
		t.Errorf("a key that has expired is answered %d %s", got.Status, got.Body)
	}

	before := row[string](t, d.tables, ledger)
	execute(t, d.tables, `insert into outbox (topic, message_id, payload, metadata) select topic, message_id, payload, metadata from backup`)
	testrun.True(t, "all messages were received again and are gone", func() bool {
		return row[int](t, d.tables, copied) >= 4*n && row[bool](t, d.tables, nothingKept)
	})
	mustRead(t, d.tables, before, ledger)
}

// TestRestore_ofAnOlderDump_capturesNothingTwice restores a dump that is older than what the
// provider has done since into another server. The programs refuse to start until
// `payonce outbox repair` ran. A payment that was made since is found by its charge, if the dump has
// that, and is not made again. Of a payment whose charge is gone only the provider knows, and the
// audit says so before anything is started. A client that sends its key again gets that payment.
func TestRestore_ofAnOlderDump_capturesNothingTwice(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	if _, err := exec.LookPath("pg_dump"); err != nil {
		t.Skip("not run: there is no pg_dump")
	}
	target, err := newServer(testrun.Server(t, local.Options{Fsync: true, InMemory: true}).URL("postgres"))
	must(t, err)
	must(t, target.command(t.Context(), "create database restored"))
	d := deploy(t, setup{apis: 1, workers: 1})
	stop(t, d.Workers[0])
	kept := d.send(t, newOrder(visa)).ID // its message is in the outbox of the dump
	file := filepath.Join(t.TempDir(), "dump")
	runIn(t, ".", "pg_dump", "--format=custom", "--file="+file, d.Service)
	restart(t, d.Workers[0])
	d.mustSucceed(t, kept)
	lost := request{Key: "key-" + unique(), Body: newOrder(visa).body(t)}
	gone := acceptedCharge(t, d.insist(t, lost)).ID
	d.mustSucceed(t, gone)
	reference := row[string](t, d.tables, selectReference, gone)
	kill(t, d.services()...)

	d.Service = target.url("restored")
	runIn(t, ".", "pg_restore", "--exit-on-error", "--no-owner", "--dbname="+d.Service, file)
	d.tables.Close()
	d.tables, err = pgxpool.New(t.Context(), d.Service)
	must(t, err)
	for path, env := range map[string]map[string]string{d.API: d.APIEnv(), d.Worker: d.WorkerEnv()} {
		name := filepath.Base(path)
		if _, err := d.Start(bounded(t), name+"-restored", path, env); err == nil || !strings.Contains(err.Error(), "payonce outbox repair") {
			t.Errorf("the %s starts on what was restored: %v", name, err)
		}
	}
	d.payonce(t, "outbox", "repair")
	out, err := d.Run(bounded(t), "audit", "--quiet")
	if err == nil || !bytes.Contains(out, []byte(reference)) || !bytes.Contains(out, []byte(kept)) {
		t.Errorf("the audit does not name %s and %s: %v\n%s", reference, kept, err, out)
	}

	d.APIs, err = d.StartAll(bounded(t), "api", d.API, 1, d.APIEnv)
	must(t, err)
	d.client = newClient(d.Client())
	d.startWorkers(t)
	again := acceptedCharge(t, d.insist(t, lost)).ID
	d.mustSucceed(t, kept)
	d.mustSucceed(t, again)
	books, err := d.sandbox().Books(bounded(t))
	must(t, err)
	once := map[string]int{row[string](t, d.tables, selectReference, kept): 1, row[string](t, d.tables, selectReference, again): 1}
	testrun.Same(t, "captures of each charge", once, captures(books))
	d.drain(t)
	d.payonce(t, "audit", "--quiet")
	d.client = nil // its first charge of a key is lost: the invariants do not hold
}
