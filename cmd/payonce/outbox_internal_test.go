package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/restore"
)

func TestOutboxRepair(t *testing.T) {
	t.Parallel()
	db := shopDB(t)
	deliver(t, db, "ch_1")
	repair := func(c outboxRepairCmd) (string, error) {
		stdout, _, err := capture(func(stdout, _ io.Writer) error { return c.repair(t.Context(), stdout, db) })
		return stdout, err
	}
	if out, err := repair(outboxRepairCmd{}); err == nil || out != "" || !strings.Contains(err.Error(), "nothing to repair") {
		t.Errorf("%v: %s", err, out)
	}
	out, err := repair(outboxRepairCmd{Force: true, JSON: true})
	var got repairReport
	if jsonErr := json.Unmarshal([]byte(out), &got); err != nil || jsonErr != nil {
		t.Fatalf("%v, %v: %s", err, jsonErr, out)
	}
	if diff := cmp.Diff(restore.Repaired{Events: 5}, got.Repaired); diff != "" || got.Before.Foreign() || got.Before.Newest == 0 {
		t.Errorf("before %+v, repaired (-want +got):\n%s", got.Before, diff)
	}
	// A checkpoint of a server that counts higher.
	if _, err := db.Pool().Exec(t.Context(), `update projections set txid = '1000000000000', batch = batch + 1, after = batch`); err != nil {
		t.Fatal(err)
	}
	if out, err := repair(outboxRepairCmd{}); err != nil || !strings.HasPrefix(out, "transactions up to 1000000000000 were stored") || strings.Count(out, "\n") != 2 {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := db.Pool().Exec(t.Context(), `update numbering_mark set written_in = written_in`); err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{"", "nothing to repair"} {
		if _, err := repair(outboxRepairCmd{}); (err != nil) != (says != "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}
