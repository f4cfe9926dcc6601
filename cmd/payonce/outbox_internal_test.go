package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/testdb"
)

func TestOutboxRepair(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t)
	deliver(t, db, "ch_1")
	exec := func(sql string) {
		t.Helper()
		if _, err := db.Pool().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	wantRefused(t, db, outboxRepairCmd{}, "nothing to repair")
	got := decoded[repairReport](t, mustExecute(t, db, outboxRepairCmd{Force: true, JSON: true}))
	if diff := cmp.Diff(restore.Repaired{Events: 5}, got.Repaired); diff != "" || got.Before.Foreign() || got.Before.Newest == 0 {
		t.Errorf("before %+v, repaired (-want +got):\n%s", got.Before, diff)
	}
	// A checkpoint of a server that counts higher.
	exec(`update projections set txid = '1000000000000', batch = batch + 1, after = batch`)
	if out := mustExecute(t, db, outboxRepairCmd{}); !strings.HasPrefix(out, "transactions up to 1000000000000 were stored") || strings.Count(out, "\n") != 2 {
		t.Errorf("it prints %s", out)
	}
	exec(`update numbering_mark set written_in = written_in`)
	mustExecute(t, db, outboxRepairCmd{})
	wantRefused(t, db, outboxRepairCmd{}, "nothing to repair")
}
