package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/ledger"
)

// booked is a database with charges, whose postings are added up.
func booked(t *testing.T, charges int) *postgres.DB {
	t.Helper()
	db := testdb.Open(t)
	for i := range charges {
		record(t, db, ledger.New(fmt.Sprintf("ch_%04d", i)), requested("order"))
	}
	await.True(t, "the balances have all charges", func() bool { // while transactions of other tests are open they wait
		_, err := ledger.AddUp(t.Context(), db)
		testdb.Must(t, err)
		return testdb.One[int](t, db, `select highest::int from followers where name = 'balances'`) == charges
	})
	return db
}

func TestRebuild(t *testing.T) {
	t.Parallel()
	db := booked(t, 3)
	plant := func() {
		testdb.Exec(t, db.Pool(), `update account_balances set debits = debits + 1 where account like 'customer_receivable:%'`)
	}
	const head = "3 events of 3 charges counted, up to position 3\n2 balances compared: "
	testrun.Same(t, "printed", head+"0 differed\n", mustExecute(t, db, rebuildCmd{}))
	plant()
	want := head + "1 differed, and were replaced\n  account customer_receivable:acme:USD of acme: stored 3001 − 0; the ledger says 3000 − 0\n"
	out, _, err := execute(t, db, rebuildCmd{})
	if diff := cmp.Diff(want, out); diff != "" || !errors.Is(err, errFound) {
		t.Errorf("an account differs: %v (-want +got):\n%s", err, diff)
	}
	plant()
	out, _, err = execute(t, db, rebuildCmd{JSON: true})
	got := decoded[ledger.Recounted](t, out)
	if !errors.Is(err, errFound) || got.Different != 1 || len(got.Examples) != 1 || got.Charges != 3 || got.AsOfPosition != 3 {
		t.Errorf("an account differs: %v, as JSON: %s", err, out)
	}
}

func TestOutboxRepair(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	deliver(t, db, "ch_1")
	wantRefused(t, db, outboxRepairCmd{}, "nothing to repair")
	got := decoded[repaired](t, mustExecute(t, db, outboxRepairCmd{Force: true, JSON: true}))
	testrun.Same(t, "repaired by force", repaired{WasOriginal: true, Epoch: 1}, got)
	testdb.Exec(t, db.Pool(), `update restore_mark set written_in = written_in`)
	if out := mustExecute(t, db, outboxRepairCmd{}); !strings.HasPrefix(out, "the ledger is in epoch 2: ") {
		t.Errorf("it prints %s", out)
	}
	wantRefused(t, db, outboxRepairCmd{}, "nothing to repair")
}
