package migrations_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/migrations"
)

const selectOwn = `select own from numbering`

// TestNumbering: the mark stays with the files, and with nothing that is read out
// and written in again. TestRestore in e2e has true dumps.
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
			db := pgtest.Open(t)
			for _, sql := range test.statements {
				if _, err := db.Pool().Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			var own bool
			err := pgtest.As(t, db, postgres.RoleWorker).QueryRow(t.Context(), selectOwn).Scan(&own)
			if err != nil || own != test.own {
				t.Errorf("its own: %t, want %t: %v", own, test.own, err)
			}
		})
	}
}

// anew makes the tables of 00017 as a dump does, without the column that is gone.
func anew(t *testing.T) string {
	t.Helper()
	text, err := fs.ReadFile(migrations.FS(), "00017_numbering.sql")
	if err != nil {
		t.Fatal(err)
	}
	sql := string(text)
	for _, gone := range []string{"  scar       boolean,\n", "alter table numbering_mark\n drop column scar;\n"} {
		if strings.Count(sql, gone) != 1 {
			t.Fatalf("00017 has not one %q", gone)
		}
		sql = strings.ReplaceAll(sql, gone, "")
	}
	return sql
}

// TestAnOldDatabaseIsBelieved unless it names what the server has not had.
func TestAnOldDatabaseIsBelieved(t *testing.T) {
	pgtest.Long(t, "it writes thousands of rows")
	t.Parallel()
	const far = `(pg_current_xact_id()::text::bigint + %d)::text::xid8`
	for name, test := range map[string]struct {
		written string
		by      int
		own     bool
	}{
		"an offset of its own":         {`insert into outbox_offsets values ('charges', 'inbox', %s, 1)`, 0, true},
		"an offset of a server ahead":  {`insert into outbox_offsets values ('charges', 'inbox', %s, 1)`, 1_000_000, false},
		"an event of a server ahead":   {strings.NewReplacer("occurred_at)", "occurred_at, txid)", "now())", "now(), %s)").Replace(event("e1", "ch_1", 1, "x", "{}")), 1_000_000, false},
		"projections of one ahead":     {`update projections set txid = %s, batch = batch + 1, after = batch`, 1_000_000, false},
		"projections that are its own": {`update projections set txid = %s, batch = batch + 1, after = batch`, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := pgtest.Empty(t)
			migrateTo(t, address, 16)
			conn := connect(t, address)
			if _, err := conn.Exec(t.Context(), fmt.Sprintf(test.written, fmt.Sprintf(far, test.by))); err != nil {
				t.Fatal(err)
			}
			if err := migrations.Up(t.Context(), address); err != nil {
				t.Fatal(err)
			}
			var own bool
			if err := conn.QueryRow(t.Context(), selectOwn).Scan(&own); err != nil || own != test.own {
				t.Errorf("its own: %t, want %t: %v", own, test.own, err)
			}
		})
	}
}
