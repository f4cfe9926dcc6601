package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/robustness/failpoint"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// booked is a database with charges, all of them listed.
func booked(t *testing.T, charges int) (db *postgres.DB, url string) {
	t.Helper()
	url = testdb.URL(t)
	db = testdb.Connect(t, url)
	for i := range charges {
		record(t, db, ledger.New(fmt.Sprintf("ch_%04d", i)), requested("order"))
	}
	await.True(t, "all charges are listed", func() bool {
		_, err := ledger.Project(t.Context(), db)
		testdb.Must(t, err)
		return testdb.One[int](t, db, `select count(*)::int from charge_list join projections using (generation) where state = 'live'`) == charges
	})
	return db, url
}

func TestRebuildPrints(t *testing.T) {
	t.Parallel()
	db, _ := booked(t, 3)
	plant := func() {
		testdb.Exec(t, db.Pool(), `update charge_list set status = 'failed' where charge_id = 'ch_0001'`)
	}
	const head = "3 events folded, up to position 3\n3 charges and 2 balances compared with the live ones: "
	want := head + "0 differed\nthe new ones are live\n"
	testrun.Same(t, "printed", want, mustExecute(t, db, rebuildCmd{}))
	plant()
	want = head + "1 differed\n  charge ch_0001: live says failed, 1 events; the ledger says pending, 1 events\nthe new ones are live\n"
	out, _, err := execute(t, db, rebuildCmd{})
	if diff := cmp.Diff(want, out); diff != "" || !errors.Is(err, errFound) {
		t.Errorf("a charge differs: %v (-want +got):\n%s", err, diff)
	}
	plant()
	out, _, err = execute(t, db, rebuildCmd{JSON: true})
	got := decoded[ledger.RebuildResult](t, out)
	if !errors.Is(err, errFound) || got.Different != 1 || len(got.Examples) != 1 || !got.Live || got.Charges != 3 || got.AsOfPosition != 3 {
		t.Errorf("a charge differs: %v, as JSON: %s", err, out)
	}
}

// A commit whose answer is lost may be one, and if the database is gone then,
// the command cannot say that nothing was changed.
func TestRebuildInDoubt(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	db, url := booked(t, 3)
	// The commit hides what the next read needs.
	testdb.Exec(t, db.Pool(), `
create function hide() returns trigger language plpgsql as $$
begin
  alter table ledger_events rename to hidden;
  return null;
end
$$;
create trigger hide
 after update on projections
   for each row
  when (old.state = 'building' and new.state = 'live')
execute function hide()`, pgx.QueryExecModeSimpleProtocol)
	proxy := failpoint.StartCutter(t, url)
	proxied := testdb.Connect(t, proxy.URL())
	proxy.Arm(failpoint.After, 5) // nothing else has as many statements
	out, _, err := execute(t, proxied, rebuildCmd{})
	if err == nil || proxy.Cuts() != 1 || out != "" {
		t.Fatalf("%d cuts, %v, and it prints %q", proxy.Cuts(), err, out)
	}
	if live := testdb.One[int](t, db, `select generation from projections where state = 'live'`); live != 2 {
		t.Fatalf("generation %d is live", live)
	}
	if text := err.Error(); strings.Contains(text, "nothing was changed") || !strings.Contains(text, "not known") {
		t.Errorf("the error is %q", text)
	}
}

func TestOutboxRepair(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	deliver(t, db, "ch_1")
	wantRefused(t, db, outboxRepairCmd{}, "nothing to repair")
	got := decoded[repairReport](t, mustExecute(t, db, outboxRepairCmd{Force: true, JSON: true}))
	if diff := cmp.Diff(restore.Repaired{Events: 5}, got.Repaired); diff != "" || got.Before.Foreign() || got.Before.Newest == 0 {
		t.Errorf("before %+v, repaired (-want +got):\n%s", got.Before, diff)
	}
	// A checkpoint of a server that counts higher.
	testdb.Exec(t, db.Pool(), `update projections set txid = '1000000000000', batch = batch + 1, after = batch`)
	if out := mustExecute(t, db, outboxRepairCmd{}); !strings.HasPrefix(out, "transactions up to 1000000000000 were stored") || strings.Count(out, "\n") != 2 {
		t.Errorf("it prints %s", out)
	}
	testdb.Exec(t, db.Pool(), `update numbering_mark set written_in = written_in`)
	mustExecute(t, db, outboxRepairCmd{})
	wantRefused(t, db, outboxRepairCmd{}, "nothing to repair")
}
