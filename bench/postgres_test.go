package main

import (
	"context"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Who is measured later must not carry what was left by who was measured before.
func TestNothingIsLeftForTheNextMeasurement(t *testing.T) {
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
	if err := server.season(t.Context(), files); err != nil {
		t.Fatal(err)
	}
	s := &stage{server: server, say: io.Discard}
	for range 2 {
		url, err := s.database(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		if err := execute(t.Context(), url, "create table left_behind (id int)"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var databases, ahead int
	const look = `
select (select count(*)
          from pg_database
         where datname like 'bench%'),
       (select count(*)
          from pg_ls_waldir()
         where name > pg_walfile_name(pg_current_wal_insert_lsn())
           and name ~ '^[0-9A-F]{24}$')`
	if err := conn.QueryRow(t.Context(), look).Scan(&databases, &ahead); err != nil {
		t.Fatal(err)
	}
	if databases != 0 {
		t.Errorf("%d databases are left", databases)
	}
	if ahead < files {
		t.Errorf("the log has %d files to write over, want %d", ahead, files)
	}
}
