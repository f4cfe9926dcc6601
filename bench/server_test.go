package main

import (
	"io"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
)

// What one measurement leaves must not cost the next one.
func TestCleanUp_leavesNoDatabaseAndALogToWriteOver(t *testing.T) {
	t.Parallel()
	server, err := startServer(t.Context(), false)
	testrun.Must(t, err)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	const files = 3
	testrun.Must(t, server.fillLog(t.Context(), files))
	b := &bench{server: server, say: io.Discard}
	for range 2 {
		_, err := b.database(t.Context(), false)
		testrun.Must(t, err)
	}
	testrun.Must(t, b.cleanUp(t.Context()))
	var databases, ahead int
	const left = `
select (select count(*)
          from pg_database
         where datname like 'bench%'),
       (select count(*)
          from pg_ls_waldir()
         where name > pg_walfile_name(pg_current_wal_insert_lsn())
           and name ~ '^[0-9A-F]{24}$')`
	testrun.Must(t, read(t.Context(), server.URL("postgres"), left, nil, &databases, &ahead))
	if databases != 0 {
		t.Errorf("%d databases are left", databases)
	}
	if ahead < files {
		t.Errorf("the log has %d files to write over, want %d", ahead, files)
	}
}
