package migrations_test

import (
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/ledger"
)

// TestNumbering: the mark stays with the files, and with nothing that is dumped
// and restored. TestRestore_intoAnotherServer_losesNothing in e2e has true dumps.
func TestNumbering(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		statements []string
		own        bool
	}{
		"a database that was made from a template":       {nil, true},
		"tables that were written anew where they stand": {[]string{`vacuum full`, `vacuum freeze numbering_mark`, `cluster numbering_mark using numbering_mark_pkey`}, true},
		"a row that was locked":                          {[]string{`select only_one from numbering_mark for update`}, true},
		"a row that another transaction wrote":           {[]string{`update numbering_mark set written_in = written_in`}, false},
		"rows without their table":                       {[]string{`create table dump as select only_one, written_in from numbering_mark`, `truncate numbering_mark`, `insert into numbering_mark table dump`}, false},
		"no row":                                         {[]string{`truncate numbering_mark`}, false},
		"a table that came through a dump, by chance in the transaction of the same number": {[]string{`drop view numbering; drop table numbering_mark`, anew(t)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t)
			for _, sql := range test.statements {
				testdb.Exec(t, db.Pool(), sql)
			}
			if own := testdb.One[bool](t, testdb.As(t, db, postgres.RoleWorker), `select own from numbering`); own != test.own {
				t.Errorf("its own: %t, want %t", own, test.own)
			}
		})
	}
}

// anew makes the mark as a dump does, without the column that is gone.
func anew(t *testing.T) string {
	t.Helper()
	_, sql, found := strings.Cut(ledger.Schema(), "create table numbering_mark")
	if !found {
		t.Fatal("the schema of the ledger has no numbering_mark")
	}
	sql = "create table numbering_mark" + sql + ";\ngrant select on numbering to payonce_worker"
	for _, gone := range []string{"  dropped    boolean,\n", "alter table numbering_mark\n drop column dropped;\n"} {
		if strings.Count(sql, gone) != 1 {
			t.Fatalf("the schema of the ledger has not one %q", gone)
		}
		sql = strings.ReplaceAll(sql, gone, "")
	}
	return sql
}
