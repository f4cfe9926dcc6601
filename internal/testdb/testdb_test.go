package testdb_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// childVariable makes TestProcess the process that it watches.
const childVariable = "PAYONCE_TESTDB_CHILD"

// TestProcess: two processes share the server of TEST_DATABASE_URL and leave the template alone. That a
// server ends with its process is shown by package local.
func TestProcess(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	if os.Getenv(childVariable) != "" {
		conn, err := pgx.Connect(t.Context(), testdb.URL(t)) // it is connected when its database is dropped
		testdb.Must(t, err)
		if _, err := os.Stdout.WriteString(childVariable + " " + testdb.One[string](t, conn, `show data_directory`) + "\n"); err != nil {
			t.Fatal(err)
		}
		return
	}

	server := testdb.Server(t, local.Options{})
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	testdb.Must(t, err)
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	want := testdb.One[string](t, conn, `show data_directory`)
	said := make(chan string)
	for range 2 {
		go func() { said <- run(t.Context(), server.URL("postgres")) }()
	}
	for range 2 {
		if got := <-said; got != want {
			t.Errorf("a process used %q, want %q", got, want)
		}
	}
	databases := testdb.All[string](t, conn, `select regexp_replace(datname, '[0-9a-f]{16}$', '…') from pg_database order by 1`)
	testrun.Same(t, "databases afterwards", []string{"payonce_template_…", "postgres", "template0", "template1"}, databases)
}

// run runs TestProcess as a child on another server, or on one of its own. It
// returns the data folder of the server that the child used, or what it said
// instead.
func run(ctx context.Context, server string) string {
	self, err := os.Executable()
	if err != nil {
		return err.Error()
	}
	child := exec.CommandContext(ctx, self, "-test.run=^TestProcess$")
	child.Env = append(os.Environ(), childVariable+"=1", "TEST_DATABASE_URL="+server)
	out, err := child.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if data, found := strings.CutPrefix(line, childVariable+" "); found && err == nil {
			return strings.TrimSpace(data)
		}
	}
	return fmt.Sprintf("%v: %s", err, out)
}
