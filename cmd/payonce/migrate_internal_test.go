package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"strconv"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/migrations"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(migrations.FS(), "*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	number, _, _ := strings.Cut(files[len(files)-1], "_")
	want, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	url := pgtest.Empty(t)
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
		var told migrated
		if err := json.Unmarshal(out.Bytes(), &told); err != nil || told.Version != want {
			t.Errorf("%s: %v, want version %d", out.Bytes(), err, want)
		}
	}
	var out bytes.Buffer
	if err := (migrateCmd{}).migrate(t.Context(), &out, db, url); err != nil || out.Len() > 0 {
		t.Errorf("without --json it prints %q: %v", out.String(), err)
	}
}
