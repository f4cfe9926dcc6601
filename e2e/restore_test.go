package e2e_test

import (
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// TestRestore_ofAnOlderDump_capturesNothingTwice restores a dump that is older than
// what the provider has done since into another server, which has had fewer transactions. The
// programs refuse to start until `payonce outbox repair` ran. A payment that was made since is found
// by its charge, if the dump has that, and is not made again. Of a payment whose charge is
// gone only the provider knows, and the audit says so before anything is started. A client that
// sends its key again gets that payment. Where the provider has forgotten its own key the money is
// taken twice, and the audit names the first capture until an operator refunds it at the provider.
func TestRestore_ofAnOlderDump_capturesNothingTwice(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	if _, err := exec.LookPath("pg_dump"); err != nil {
		t.Skip("not run: there is no pg_dump")
	}
	_, target := ownServer(t, local.Options{Fsync: true})
	moved := target.database(t, "restored")
	d := deploy(t, setup{apis: 1, workers: 1})
	const ahead = `do $$ begin for i in 1..20000 loop perform pg_current_xact_id(); commit; end loop; end $$`
	d.server.execute(t, ahead)
	before := d.paid(t)
	d.mustRefund(t, d.refund(t, before.ID, 100))
	d.setFaults(t, harness.Faults{DropBefore: 1})
	open := d.send(t, newOrder(visa))
	d.waitMore(t)
	file := filepath.Join(t.TempDir(), "dump")
	tool(t, "pg_dump", "--format=custom", "--file="+file, d.Service)
	d.setFaults(t, harness.Faults{})
	d.mustSucceed(t, open.ID)
	given := d.refund(t, before.ID, 400)
	d.mustRefund(t, given)
	lost := map[string]request{} // by the references of their charges
	for range 2 {
		r := request{key: "key-" + unique(), body: newOrder(visa).body(t)}
		id := acceptedCharge(t, d.insist(t, r)).ID
		d.mustSucceed(t, id)
		lost[row[string](t, d, `select data ->> 'reference' from ledger_events where version = 1 and stream_id = $1`, id)] = r
	}
	kill(t, d.services()...)

	tool(t, "pg_restore", "--exit-on-error", "--no-owner", "--dbname="+moved, file)
	d.repairIn(t, moved)
	d.auditNames(t, append(slices.Collect(maps.Keys(lost)), open.ID, given.ID))

	d.startAPIs(t)
	d.startWorkers(t)
	d.mustSucceed(t, open.ID)
	d.paid(t)
	want, kept, twice := map[string]int{before.ID: 1, open.ID: 1}, "", ""
	for _, again := range lost {
		d.setFaults(t, harness.Faults{ForgetKeysAfter: kept})
		twice = acceptedCharge(t, d.insist(t, again)).ID
		d.mustSucceed(t, twice)
		want[twice], kept = 1, "0s"
	}
	want[twice] = 2
	known := row[string](t, d, `select data ->> 'payment_intent' from ledger_events where type = 'payment.started.v1' and stream_id = $1`, twice)
	captures, first := map[string]int{}, harness.Money{}
	for _, c := range d.records(t).Captures {
		if want[c.Reference] > 0 {
			captures[c.Reference]++
		}
		if c.Reference == twice && c.PaymentIntent != known {
			first = c
		}
	}
	testrun.Same(t, "captures of each charge", want, captures)
	d.auditNames(t, []string{first.PaymentIntent + " took"}, "--repair")
	must(t, d.sandbox().Refund(bounded(t), first.PaymentIntent, first.Amount))
	d.mustRefund(t, given) // which the dump lacks
	d.drain(t)
	d.payonce(t, "audit", "--quiet")
	d.payonce(t, "rebuild") // a recount finds no balance to differ
	d.client = nil          // its first charges of the keys are lost: the invariants do not hold
}

// repairIn makes another database that of the service, which no program uses before the repair.
func (d *deployment) repairIn(t *testing.T, url string) {
	t.Helper()
	d.Service = url
	d.tables.Close()
	var err error
	d.tables, err = pgxpool.New(t.Context(), url)
	must(t, err)
	mustRead(t, d, true, `select max(txid::text::bigint) >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint from ledger_events`)
	for name, program := range map[string]harness.Program{
		"api":    {Name: "api-restored", Path: d.API, Env: d.APIEnv(), Log: d.Log},
		"worker": {Name: "worker-restored", Path: d.Worker, Env: d.workerSettings(0), Log: d.Log},
	} {
		if _, err := harness.Start(bounded(t), program); err == nil || !strings.Contains(err.Error(), "payonce outbox repair") {
			t.Errorf("the %s starts on what was restored: %v", name, err)
		}
	}
	d.payonce(t, "outbox", "repair")
	if out, err := d.Run(bounded(t), "outbox", "repair"); err == nil {
		t.Errorf("a second repair: %s", out)
	}
}

// auditNames wants the audit to end with an error, and to name each of the texts.
func (d *deployment) auditNames(t *testing.T, texts []string, flags ...string) {
	t.Helper()
	out, err := d.Run(bounded(t), append([]string{"audit", "--quiet"}, flags...)...)
	for _, text := range texts {
		if !strings.Contains(string(out), text) || err == nil {
			t.Errorf("the audit does not name %s: %v\n%s", text, err, out)
		}
	}
}

func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// waitMore waits until all that waits has been tried again.
func (d *deployment) waitMore(t *testing.T) {
	t.Helper()
	const tried = `select coalesce(min(waits), 0) from inbox where type = 'charge.requested.v1' and status <> 'done'`
	var before int
	testrun.True(t, "all of them wait", func() bool { before = row[int](t, d, tried); return before > 0 })
	testrun.True(t, "they are tried again", func() bool { return row[int](t, d, tried) > before })
}
