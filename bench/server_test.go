package main

import (
	"io"
	"testing"
)

// What one measurement leaves must not cost the next one.
func TestCleanUp_leavesNoDatabaseAndALogToWriteOver(t *testing.T) {
	t.Parallel()
	server, err := startServer(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	const files = 3
	if err := server.fillLog(t.Context(), files); err != nil {
		t.Fatal(err)
	}
	b := &bench{server: server, say: io.Discard}
	for range 2 {
		if _, err := b.database(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.cleanUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	var databases, ahead int
	const left = `
select (select count(*)
          from pg_database
         where datname like 'bench%'),
       (select count(*)
          from pg_ls_waldir()
         where name > pg_walfile_name(pg_current_wal_insert_lsn())
           and name ~ '^[0-9A-F]{24}$')`
	if err := read(t.Context(), server.URL("postgres"), left, nil, &databases, &ahead); err != nil {
		t.Fatal(err)
	}
	if databases != 0 {
		t.Errorf("%d databases are left", databases)
	}
	if ahead < files {
		t.Errorf("the log has %d files to write over, want %d", ahead, files)
	}
}
