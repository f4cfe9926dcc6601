package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/migrations/version"
)

func TestMigrate(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	const want = version.Latest
	url := testdb.Empty(t)
	db, err := postgres.Open(t.Context(), url, postgres.Options{Application: t.Name(), AllowPlaintext: true, AllowUnsafeDurability: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	for range 2 { // the second time nothing is left to do
		var out bytes.Buffer
		if err := (migrateCmd{JSON: true}).migrate(t.Context(), &out, db, url); err != nil {
			t.Fatal(err)
		}
		var printed migrated
		if err := json.Unmarshal(out.Bytes(), &printed); err != nil || printed.Version != want {
			t.Errorf("%s: %v, want version %d", out.Bytes(), err, want)
		}
	}
	var out bytes.Buffer
	if err := (migrateCmd{}).migrate(t.Context(), &out, db, url); err != nil || out.Len() > 0 {
		t.Errorf("without --json it prints %q: %v", out.String(), err)
	}
}
