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
	programs = sync.OnceValues(builtPrograms)
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
			testrun.AtEnd(s.dropTemplates)
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

// programsVariable names the folder of the programs to a process that a test starts.
const programsVariable = "PAYONCE_TEST_PROGRAMS"

func builtPrograms() (harness.Binaries, error) {
	if dir := os.Getenv(programsVariable); dir != "" {
		return harness.In(dir), nil
	}
	return build("programs")
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

func binaries(t *testing.T) harness.Binaries {
	t.Helper()
	b, err := programs()
	must(t, err)
	return b
}

// startsPrograms skips a test that starts programs when -short is set. One test
// runs nevertheless: a charge whose worker is killed once.
func startsPrograms(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not run with -short: the test starts programs")
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) { _ = harness.Wait(ctx, d) }

// unique returns a word that no other call returned.
func unique() string { return strings.ToLower(rand.Text()[:16]) }

// server is a PostgreSQL server. at is the URL of its maintenance database.
type server struct {
	at *url.URL

	mu      sync.Mutex
	service string // template database of the service, migrated and seeded
	logins  string // how the names of the programs' users begin
}

// databasePassword is the password in every URL that has none. A server that the
// tests started never asks for it: logs and dumps are searched for it.
const databasePassword = "s3cret-of-the-database"

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
	return &server{at: u}, nil
}

// ownServer starts a server for one test, with the roles that a migration makes.
func ownServer(t *testing.T, o local.Options) (*local.Server, *server) {
	t.Helper()
	o.InMemory = true
	started := testrun.Server(t, o)
	s, err := newServer(started.URL("postgres"))
	must(t, err)
	for _, role := range []string{"payonce_api", "payonce_worker", "payonce_console"} {
		s.execute(t, "create role "+role+" nologin")
	}
	return started, s
}

func sharedServer(t *testing.T) *server {
	t.Helper()
	s, err := shared()
	must(t, err)
	return s
}

// template returns the database of which every deployment gets a copy. The first call makes
// it with the programs: `payonce migrate` and `payonce seed`.
func (s *server) template(ctx context.Context) (service string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := programs()
	if s.service != "" || err != nil {
		return s.service, err
	}
	service = "payonce_e2e_service_" + unique()
	if err := s.command(ctx, "create database "+quoted(service)); err != nil {
		return "", err
	}
	w := harness.World{Binaries: b, Log: filepath.Dir(b.Payonce), Service: s.url(service)}
	if _, err := w.Run(ctx, "migrate"); err != nil {
		return "", err
	}
	secrets := processSecrets()
	if _, err := w.Run(ctx, "seed", "--merchant", merchant, "--api-key", secrets.API, "--webhook-url", "http://127.0.0.1:1",
		"--webhook-secret", secrets.Shop, "--sku", "tshirt=100000", "--sku", "mug=100000"); err != nil {
		return "", err
	}
	logins := "payonce_e2e_" + unique() + "_"
	for _, program := range []string{"api", "worker"} {
		if err := s.command(ctx, "create role "+logins+program+" login password '"+databasePassword+"' in role payonce_"+program); err != nil {
			return "", err
		}
	}
	s.service, s.logins = service, logins
	return service, nil
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

// openWorld copies the template for programs that may be planted. What it returns has to be
// closed, also with an error.
func (s *server) openWorld(ctx context.Context, run harness.Binaries, log string) (*world, error) {
	w := &world{World: harness.World{Binaries: run, Log: log, Secrets: processSecrets()}, server: s}
	template, err := s.template(ctx)
	if err != nil {
		return w, err
	}
	w.database = template + "_" + unique()
	w.Service = s.url(w.database)
	if err := s.command(ctx, "create database "+quoted(w.database)+" template "+quoted(template)+" strategy file_copy"); err != nil {
		return w, err
	}
	w.tables, err = pgxpool.New(ctx, w.Service)
	return w, err
}

// close removes the database.
func (w *world) close(ctx context.Context) (err error) {
	if w.tables != nil {
		w.tables.Close()
	}
	if w.database == "" {
		return nil
	}
	return w.server.drop(ctx, w.database)
}

func (s *server) dropTemplates() error {
	if s.service == "" {
		return nil
	}
	ctx := context.Background()
	return errors.Join(s.drop(ctx, s.service),
		s.command(ctx, "drop role "+s.logins+"api"), s.command(ctx, "drop role "+s.logins+"worker"))
}

func (s *server) drop(ctx context.Context, database string) error {
	return s.command(ctx, "drop database if exists "+quoted(database)+" with (force)")
}

func (s *server) url(database string) string {
	u := *s.at
	u.Path, u.RawPath = "/"+database, ""
	return u.String()
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// execute runs a statement outside a transaction.
func (s *server) execute(t *testing.T, statement string) {
	t.Helper()
	must(t, s.command(t.Context(), statement))
}

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
