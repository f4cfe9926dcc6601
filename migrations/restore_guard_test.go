package migrations_test

import (
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// TestRestoreGuard: the mark stays with the files, and with nothing that is dumped
// and restored. TestRestore_ofAnOlderDump_capturesNothingTwice in e2e has true dumps.
func TestRestoreGuard(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		statements []string
		own        bool
	}{
		"a database that was made from a template":       {nil, true},
		"tables that were written anew where they stand": {[]string{`vacuum full`, `vacuum freeze restore_mark`, `cluster restore_mark using restore_mark_pkey`}, true},
		"a row that was locked":                          {[]string{`select only_one from restore_mark for update`}, true},
		"a row that another transaction wrote":           {[]string{`update restore_mark set written_in = written_in`}, false},
		"rows without their table":                       {[]string{`create table dump as select only_one, written_in from restore_mark`, `truncate restore_mark`, `insert into restore_mark table dump`}, false},
		"no row":                                         {[]string{`truncate restore_mark`}, false},
		"a table that came through a dump, by chance in the transaction of the same number": {[]string{`drop view restore_guard; drop table restore_mark`, anew(t)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t)
			for _, sql := range test.statements {
				testdb.Exec(t, db.Pool(), sql)
			}
			if own := testdb.One[bool](t, testdb.As(t, db, postgres.RoleWorker), `select is_original from restore_guard`); own != test.own {
				t.Errorf("original: %t, want %t", own, test.own)
			}
		})
	}
}

// anew makes the mark as a dump does, without the column that is gone.
func anew(t *testing.T) string {
	t.Helper()
	_, sql, found := strings.Cut(ledger.Schema(), "create table restore_mark")
	if !found {
		t.Fatal("the schema of the ledger has no restore_mark")
	}
	sql = "create table restore_mark" + sql + ";\ngrant select on restore_guard to payonce_worker"
	for _, gone := range []string{"  dropped    boolean,\n", "alter table restore_mark\n drop column dropped;\n"} {
		if strings.Count(sql, gone) != 1 {
			t.Fatalf("the schema of the ledger has not one %q", gone)
		}
		sql = strings.ReplaceAll(sql, gone, "")
	}
	return sql
}
