package e2e_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// TestRestore_intoAnotherServer_losesNothing dumps the service's database while charges are in flight, and
// restores it into another server. The programs refuse to start until `payonce outbox repair` ran; then
// everything is processed.
func TestRestore_intoAnotherServer_losesNothing(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	needTools(t)
	_, target := ownServer(t, local.Options{Fsync: true})
	source := sharedServer(t)
	const ahead = 20_000 // more than the other tests use meanwhile
	source.countTo(t, target.transactions(t)+ahead)
	restoreInto(t, target)
}

// transactions is the next transaction id of a server.
func (s *server) transactions(t *testing.T) (next int64) {
	t.Helper()
	err := s.connected(t.Context(), func(conn *pgx.Conn) error {
		return conn.QueryRow(t.Context(), `select pg_snapshot_xmax(pg_current_snapshot())::text::bigint`).Scan(&next)
	})
	must(t, err)
	return next
}

// countTo uses up transaction ids until a server has reached a number.
func (s *server) countTo(t *testing.T, number int64) {
	t.Helper()
	if n := number - s.transactions(t); n > 0 {
		s.execute(t, fmt.Sprintf(`do $$ begin for i in 1..%d loop perform pg_current_xact_id(); commit; end loop; end $$`, n))
	}
}

// restoreInto moves a deployment to another server, which has had fewer transactions.
func restoreInto(t *testing.T, target *server) {
	t.Helper()
	moved := target.database(t, "restored")
	d := deploy(t, setup{apis: 1, workers: 1})
	d.process(t, newOrder(visa))
	d.awaitRefund(t, d.refund(t, d.paid(t).ID, 400))
	d.setFaults(t, harness.Faults{DropBefore: 1})
	var charges []charge
	for range 3 {
		charges = append(charges, d.send(t, newOrder(visa)))
	}
	kill(t, d.services()...)
	d.setFaults(t, harness.Faults{})

	loadDump(t, moved, dump(t, d.Service))
	d.useDatabase(t, moved)
	for name, program := range map[string]harness.Program{
		"api":    {Name: "api-restored", Path: d.API, Env: d.APIEnv(), Log: d.Log},
		"worker": {Name: "worker-restored", Path: d.Worker, Env: d.workerSettings(0), Log: d.Log},
	} {
		if _, err := harness.Start(bounded(t), program); err == nil || !strings.Contains(err.Error(), "payonce outbox repair") {
			t.Errorf("the %s starts on what was restored: %v", name, err)
		}
	}
	if newest, next := d.order(t); newest < next {
		t.Errorf("the newest order number is %d, the server's next one %d", newest, next)
	}
	var repaired struct {
		WasOriginal bool `json:"was_original"`
		Epoch       int
	}
	if err := json.Unmarshal(d.payonce(t, "outbox", "repair", "--json"), &repaired); err != nil || repaired.WasOriginal || repaired.Epoch != 1 {
		t.Errorf("%v: %+v", err, repaired)
	}
	var err error
	d.APIs[0], err = d.Start(bounded(t), "api-restored", d.API, d.APIEnv())
	must(t, err)
	d.client.apis = []string{d.APIs[0].URL()}
	d.startWorkers(t)
	for _, c := range charges {
		d.mustSucceed(t, c.ID)
	}
	if out, err := d.run(t, "outbox", "repair"); exitCode(err) != 1 {
		t.Errorf("a second repair: %v, %s", err, out)
	}
	d.process(t, newOrder(visa))
	if out, err := d.run(t, "rebuild", "--json"); exitCode(err) != 0 {
		t.Errorf("a recount found the balances to differ: %v, %s", err, out)
	}
}

// capturedFirst is the capture for a charge of a payment intent that the ledger does not have.
func (d *deployment) capturedFirst(t *testing.T, id string) harness.Money {
	t.Helper()
	known := row[string](t, d, `select data ->> 'payment_intent' from ledger_events where type = 'payment.started.v1' and stream_id = $1`, id)
	captures := d.recordsOf(t, id).Captures
	i := slices.IndexFunc(captures, func(c harness.Money) bool { return c.PaymentIntent != known })
	if i < 0 {
		t.Fatalf("the captures of %s are %+v", id, captures)
	}
	return captures[i]
}

// order is the newest order number, and the number of the server's next transaction.
func (d *deployment) order(t *testing.T) (newest, next int64) {
	t.Helper()
	return row[int64](t, d, `select max(txid::text::bigint) from ledger_events`), row[int64](t, d, `select pg_snapshot_xmax(pg_current_snapshot())::text::bigint`)
}

// useDatabase makes another database that of the service.
func (d *deployment) useDatabase(t *testing.T, url string) {
	t.Helper()
	d.Service = url
	d.tables.Close()
	var err error
	d.tables, err = pgxpool.New(t.Context(), url)
	must(t, err)
}

// dump writes a database into a file, as of now.
func dump(t *testing.T, database string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "dump")
	tool(t, "pg_dump", "--format=custom", "--file="+file, database)
	return file
}

func loadDump(t *testing.T, database, file string) {
	t.Helper()
	tool(t, "pg_restore", "--exit-on-error", "--no-owner", "--dbname="+database, file)
}

func tool(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return out
}

// needTools skips where a dump cannot be made.
func needTools(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("pg_dump"); err != nil {
		t.Skip("not run: there is no pg_dump")
	}
}

// TestRestore_ofAnOlderDump_capturesNothingTwice restores a dump that is older than
// what the provider has done since, beside the database that is lost. A payment that was made since is found by its
// charge, if the dump has that, and is not made again. Of a payment whose charge is
// gone only the provider knows, and the audit says so before anything is started. A client that
// sends its key again gets that payment. Where the provider has forgotten its own key the money is
// taken twice, and the audit names the first capture until an operator refunds it at the provider.
func TestRestore_ofAnOlderDump_capturesNothingTwice(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	needTools(t)
	d := deploy(t, setup{apis: 1, workers: 1})
	moved := d.server.database(t, "restored")
	before := d.process(t, newOrder(visa))
	d.setFaults(t, harness.Faults{DropBefore: 1})
	open := d.send(t, newOrder(visa))
	d.waitMore(t)
	file := dump(t, d.Service)
	d.setFaults(t, harness.Faults{})
	d.mustSucceed(t, open.ID)
	given := d.refund(t, before.ID, 400)
	d.awaitRefund(t, given)
	lost := map[string]request{} // by the references of their charges
	for range 2 {
		r := request{key: "key-" + unique(), body: newOrder(visa).body(t)}
		id := acceptedCharge(t, d.insist(t, r)).ID
		d.mustSucceed(t, id)
		lost[row[string](t, d, `select data ->> 'reference' from ledger_events where version = 1 and stream_id = $1`, id)] = r
	}
	kill(t, d.services()...)

	loadDump(t, moved, file)
	d.useDatabase(t, moved)
	d.payonce(t, "outbox", "repair")
	out, err := d.run(t, "audit", "--quiet")
	for _, id := range append(slices.Collect(maps.Keys(lost)), open.ID, given.ID) {
		if !strings.Contains(string(out), id) || exitCode(err) != 1 {
			t.Errorf("the audit does not name %s: %v\n%s", id, err, out)
		}
	}

	d.startAPIs(t)
	d.startWorkers(t)
	d.mustSucceed(t, open.ID)
	d.paid(t)
	charges, kept, twice := map[string]int{before.ID: 1, open.ID: 1}, "", ""
	for _, again := range lost {
		d.setFaults(t, harness.Faults{ForgetKeysAfter: kept})
		twice = acceptedCharge(t, d.insist(t, again)).ID
		d.mustSucceed(t, twice)
		charges[twice], kept = 1, "0s"
	}
	charges[twice] = 2
	for id, want := range charges {
		if n := len(d.recordsOf(t, id).Captures); n != want {
			t.Errorf("%s was captured %d times, want %d", id, n, want)
		}
	}
	out, err = d.run(t, "audit", "--quiet", "--repair")
	first := d.capturedFirst(t, twice)
	if named := first.PaymentIntent + " took"; !strings.Contains(string(out), named) || exitCode(err) != 1 {
		t.Errorf("the audit does not name the capture %s: %v\n%s", first.PaymentIntent, err, out)
	}
	must(t, d.sandbox().Refund(bounded(t), first.PaymentIntent, first.Amount))
	if got := d.awaitRefund(t, given); got.Status != "succeeded" {
		t.Errorf("the refund that the dump lacks is %+v", got)
	}
	d.drain(t)
	if out, err = d.run(t, "audit", "--quiet"); exitCode(err) != 0 {
		t.Errorf("the audit says at last: %v\n%s", err, out)
	}
	d.client = nil // its first charges of the keys are lost: the invariants do not hold
}

// waitMore waits until all that waits has been tried again.
func (d *deployment) waitMore(t *testing.T) {
	t.Helper()
	const tried = `select coalesce(min(waits), 0) from inbox where type = 'charge.requested.v1' and status <> 'done'`
	var before int
	testrun.True(t, "all of them wait", func() bool { before = row[int](t, d, tried); return before > 0 })
	testrun.True(t, "they are tried again", func() bool { return row[int](t, d, tried) > before })
}
