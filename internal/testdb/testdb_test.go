package testdb_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/migrations/version"
)

// childVariable makes TestProcess the process that it watches.
const childVariable = "PAYONCE_TESTDB_CHILD"

func TestDatabases_haveEveryMigrationOrNone(t *testing.T) {
	t.Parallel()
	opened := testdb.Open(t)
	for name, test := range map[string]struct {
		q    postgres.Querier
		want bool
	}{
		"URL":   {connect(t, testdb.URL(t)), false},
		"Open":  {opened, false},
		"Empty": {connect(t, testdb.Empty(t)), true},
	} {
		if pending, err := version.Pending(t.Context(), test.q); pending != test.want || err != nil {
			t.Errorf("%s: migrations are pending: %v, %v", name, pending, err)
		}
	}
	var application string
	if err := opened.QueryRow(t.Context(), `show application_name`).Scan(&application); err != nil || application != t.Name() {
		t.Errorf("the application is %q (%v), want the test's name", application, err)
	}
}

func TestURL(t *testing.T) {
	t.Parallel()

	t.Run("two databases are independent", func(t *testing.T) {
		t.Parallel()
		a, b := connect(t, testdb.URL(t)), connect(t, testdb.URL(t))
		testdb.Exec(t, a, `create table mine ()`)
		const exists = `select to_regclass('mine') is not null`
		if in, out := ask[bool](t, a, exists), ask[bool](t, b, exists); !in || out {
			t.Errorf("the table is in its database: %v, in the other: %v", in, out)
		}
	})

	t.Run("a database is dropped when its test ends, also while sessions are connected", func(t *testing.T) {
		t.Parallel()
		observer := connect(t, testdb.Empty(t))
		const exists = `select exists (select 1 from pg_database where datname = $1)`
		for name, database := range map[string]func(testing.TB) string{"migrated": testdb.URL, "empty": testdb.Empty} {
			var conn *pgx.Conn
			var mine string
			t.Run(name, func(t *testing.T) {
				var err error
				if conn, err = pgx.Connect(t.Context(), database(t)); err != nil {
					t.Fatal(err)
				}
				mine = ask[string](t, conn, `select current_database()`)
				if !ask[bool](t, observer, exists, mine) {
					t.Errorf("%s does not exist during its test", mine)
				}
			})
			if ask[bool](t, observer, exists, mine) {
				t.Errorf("%s exists after its test", mine)
			}
			if err := conn.Ping(t.Context()); err == nil {
				t.Errorf("a session of %s outlives it", mine)
			}
		}
	})
}

func TestProcess(t *testing.T) {
	testdb.Long(t, "it takes a large part of the time")
	t.Parallel()
	if os.Getenv(childVariable) != "" {
		conn := connect(t, testdb.URL(t))
		if _, err := os.Stdout.WriteString(childVariable + " " + ask[string](t, conn, `show data_directory`) + "\n"); err != nil {
			t.Fatal(err)
		}
		return
	}

	t.Run("the server ends with the process that started it", func(t *testing.T) {
		t.Parallel()
		data := run(t.Context(), "")
		if !strings.Contains(data, "payonce-pg-") {
			t.Fatalf("it says %q", data)
		}
		await.True(t, "the server's folder is gone", func() bool {
			_, err := os.Stat(filepath.Dir(data))
			return errors.Is(err, fs.ErrNotExist)
		})
	})

	t.Run("two processes share the server of TEST_DATABASE_URL and leave the template alone", func(t *testing.T) {
		t.Parallel()
		server := testdb.Server(t, local.Options{})
		conn := connect(t, server.URL("postgres"))
		want := ask[string](t, conn, `show data_directory`)
		said := make(chan string)
		for range 2 {
			go func() { said <- run(t.Context(), server.URL("postgres")) }()
		}
		for range 2 {
			if got := <-said; got != want {
				t.Errorf("a process used %q, want %q", got, want)
			}
		}
		databases := ask[[]string](t, conn, `
select array_agg(regexp_replace(datname, '[0-9a-f]{16}$', '…') order by datname)
  from pg_database`)
		testrun.Same(t, "databases afterwards", []string{"payonce_template_…", "postgres", "template0", "template1"}, databases)
	})

	t.Run("an address that is none is refused in a sentence", func(t *testing.T) {
		t.Parallel()
		if got := run(t.Context(), "host=localhost dbname=x"); !strings.Contains(got, "TEST_DATABASE_URL is no address of the form") {
			t.Errorf("it says %q", got)
		}
	})
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

func connect(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	testdb.Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func ask[T any](t *testing.T, conn *pgx.Conn, question string, args ...any) T {
	t.Helper()
	var answer T
	testdb.Must(t, conn.QueryRow(t.Context(), question, args...).Scan(&answer))
	return answer
}
