package e2e_test

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/robustness/harness"
	"github.com/payonce/payonce/internal/testrun"
)

// All tests of this process share these. The first test that needs one makes it.
var (
	shared   = sync.OnceValues(startShared)
	programs = sync.OnceValues(func() (harness.Binaries, error) { return build("programs") })
)

// TestMain runs eight tests at a time where no other number is given: most of their time they wait.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // a number it takes; the command line is read later
	testrun.Main(m)
}

const buildTimeout = 10 * time.Minute

// startShared connects to the server of TEST_DATABASE_URL, or starts one with
// fsync, which the programs require.
func startShared() (*server, error) {
	if at := os.Getenv("TEST_DATABASE_URL"); at != "" {
		s, err := newServer(at)
		if err == nil {
			testrun.AtEnd(s.dropLogins)
		}
		return s, err
	}
	// It may download PostgreSQL first, and bounds that itself.
	// Each program may have dozens of connections, and many run at a time.
	o := local.Options{Fsync: true, InMemory: true, Settings: map[string]string{"max_connections": "800"}}
	started, err := local.Start(context.Background(), o)
	if err != nil {
		return nil, err
	}
	testrun.AtEnd(started.Close)
	return newServer(started.URL("postgres"))
}

// build builds the programs into a folder, which testrun removes.
func build(folder string, flags ...string) (harness.Binaries, error) {
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	return harness.Build(ctx, filepath.Join(os.TempDir(), folder), flags...)
}

// raceDetecting are programs that report data races. Without a C compiler they are the others.
var raceDetecting = sync.OnceValues(func() (harness.Binaries, error) {
	if exec.CommandContext(context.Background(), "sh", "-c", "command -v $(go env CC)").Run() != nil {
		return programs()
	}
	return build("race", "-race")
})

// made is what all tests of this process share.
func made[T any](t *testing.T, by func() (T, error)) T {
	t.Helper()
	what, err := by()
	must(t, err)
	return what
}

// startsPrograms leaves a test that starts programs out of short mode.
func startsPrograms(t *testing.T) {
	t.Helper()
	testrun.Long(t, "it starts programs")
}

// startsWithEvery skips a test that starts programs, and that continuous integration alone runs.
func startsWithEvery(t *testing.T, because string) {
	t.Helper()
	startsPrograms(t)
	if !*every {
		t.Skipf("not run: %s (-every)", because)
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) { _ = harness.Wait(ctx, d) }

// unique returns a word that no other call returned.
func unique() string { return strings.ToLower(rand.Text()[:16]) }

// server is a PostgreSQL server.
type server struct {
	at     *url.URL // of its maintenance database
	logins string   // how the names of the programs' users begin
}

// databasePassword is the password in every URL that has none. A server that the
// tests started never asks for it: logs and dumps are searched for it.
const databasePassword = "s3cret-of-the-database"

// newServer makes a user for each of the programs, and the role of a migration for each user.
func newServer(at string) (*server, error) {
	u, err := url.Parse(at)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		return nil, errors.New("TEST_DATABASE_URL is not of the form postgres://user@host/database")
	}
	if u.User == nil {
		u.User = url.User("postgres")
	}
	if _, set := u.User.Password(); !set {
		u.User = url.UserPassword(u.User.Username(), databasePassword)
	}
	s := &server{at: u, logins: "payonce_e2e_" + unique() + "_"}
	for _, program := range []string{"api", "worker", "console"} {
		err = errors.Join(err, s.command(context.Background(), fmt.Sprintf(`
do $$ begin create role payonce_%[1]s nologin; exception when duplicate_object or unique_violation then null; end $$;
create role %[2]s%[1]s login password '%[3]s' in role payonce_%[1]s`, program, s.logins, databasePassword)))
	}
	return s, err
}

func (s *server) dropLogins() error {
	return s.command(context.Background(), fmt.Sprintf(`drop role %[1]sapi, %[1]sworker, %[1]sconsole`, s.logins))
}

// unprivileged lets a program reach the database as a user that may do no more than its role.
// The user of another server's database stays as it is.
func (s *server) unprivileged(env map[string]string, program string) {
	u, err := url.Parse(env["DATABASE_URL"])
	if err != nil || u.Host != s.at.Host || u.RawQuery != s.at.RawQuery {
		return
	}
	u.User = url.UserPassword(s.logins+program, databasePassword)
	env["DATABASE_URL"], env["ALLOW_PRIVILEGED_DATABASE_USER"] = u.String(), "0"
}

// world is one payonce: a database, and the programs that a test starts.
type world struct {
	harness.World

	server   *server
	database string
	tables   *pgxpool.Pool // of the database
}

// openWorld makes an empty database for programs that may be planted. What it returns has to be
// closed, also with an error.
func (s *server) openWorld(ctx context.Context, run harness.Binaries, log string) (*world, error) {
	w := &world{server: s, database: "payonce_e2e_" + unique()}
	w.World = harness.World{Binaries: run, Log: log, Service: s.url(w.database), Secrets: newSecrets()}
	err := s.command(ctx, "create database "+w.database)
	if err == nil {
		w.tables, err = pgxpool.New(ctx, w.Service)
	}
	return w, err
}

// close removes the database.
func (w *world) close(ctx context.Context) error {
	if w.tables != nil {
		w.tables.Close()
	}
	return w.server.command(ctx, "drop database if exists "+w.database+" with (force)")
}

func (s *server) url(database string) string {
	u := *s.at
	u.Path, u.RawPath = "/"+database, ""
	return u.String()
}

// command runs a statement outside a transaction.
func (s *server) command(ctx context.Context, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, testrun.Stall)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.at.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}
