package local_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func TestServer_usesTheSettingsItIsGiven(t *testing.T) {
	pgtest.Long(t, "it takes a large part of the time")
	t.Parallel()
	durable := start(t, local.Options{Fsync: true, InMemory: true})
	fast := start(t, local.Options{InMemory: true, Settings: map[string]string{"max_connections": "33", "application_name": "a b"}})
	for name, want := range map[string][2]string{
		"fsync":              {"on", "off"},
		"full_page_writes":   {"on", "off"},
		"synchronous_commit": {"on", "off"},
		"max_connections":    {"300", "33"},
		"application_name":   {"", "a b"},
		"listen_addresses":   {"", ""},
		"server_encoding":    {"UTF8", "UTF8"},
	} {
		for i, s := range []*local.Server{durable, fast} {
			if got := ask(t, connect(t, s, "postgres"), "show "+name); got != want[i] {
				t.Errorf("%s is %q, want %q", name, got, want[i])
			}
		}
	}

	// Two servers are two worlds.
	const known = `select count(*)::text from pg_database where datname = 'mine'`
	if err := durable.CreateDatabase(t.Context(), "mine"); err != nil {
		t.Fatal(err)
	}
	if in, out := ask(t, connect(t, durable, "postgres"), known), ask(t, connect(t, fast, "postgres"), known); in != "1" || out != "0" {
		t.Errorf("the database is %s times in its server and %s times in the other", in, out)
	}
	closeWithoutATrace(t, durable)
	if got := ask(t, connect(t, fast, "postgres"), known); got != "0" {
		t.Errorf("the other server answers %s after the first was closed", got)
	}
	if err := durable.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	if err := durable.Restart(t.Context()); err == nil {
		t.Error("a closed server restarted")
	}
}

func TestServer_runsTheProgramsOfPGBIN(t *testing.T) {
	t.Parallel()
	programs := os.Getenv("PG_BIN")
	if programs == "" {
		t.Skip("not run: PG_BIN is not set")
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(programs, "postgres"), "--version").Output()
	if err != nil {
		t.Skipf("not run: PG_BIN holds no server: %v", err)
	}
	s := start(t, local.Options{InMemory: true})
	if version := ask(t, connect(t, s, "postgres"), `show server_version`); !strings.Contains(string(out), version) {
		t.Errorf("version %s runs, PG_BIN holds %s", version, out)
	}
}

func TestServer_whoseKeeperWasKilled_isClosedWithoutATrace(t *testing.T) {
	pgtest.Long(t, "it takes a large part of the time")
	t.Parallel()
	// Without a cache initdb fills the data folder itself.
	uncached := local.Machine()
	programs, err := uncached.Find(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	uncached.Bin, uncached.Cache = programs, "" // the programs may be in the cache
	s, err := uncached.Start(t.Context(), local.Options{InMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := ask(t, connect(t, s, "postgres"), `select current_user`); got != "postgres" {
		t.Errorf("the URL connects as %q, want postgres", got)
	}
	if err := syscall.Kill(s.KeeperPID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	closeWithoutATrace(t, s)
}

func TestCreateDatabase_calledSeveralTimesAtOnce_createsOne(t *testing.T) {
	t.Parallel()
	s := start(t, local.Options{InMemory: true})
	const name = `odd "name"/%?`
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := s.CreateDatabase(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := ask(t, connect(t, s, name), `select current_database()`); got != name {
		t.Errorf("the URL of %q leads to %q", name, got)
	}
}

func TestStart_ofAServerThatCannotStart_saysWhyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	_, err := local.Start(t.Context(), local.Options{Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Fatalf("the error does not quote the server's log: %v", err)
	}
	_, rest, found := strings.Cut(err.Error(), "connect to PostgreSQL in ")
	folder, _, _ := strings.Cut(rest, ":")
	if _, statErr := os.Stat(folder); !found || !errors.Is(statErr, fs.ErrNotExist) {
		t.Errorf("the folder %q is still there (%v), or not named in %v", folder, statErr, err)
	}
}

func TestStart_withACanceledContext_leavesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	temp := publicFolder(t)
	canceled := local.Machine()
	canceled.Temp = temp
	if s, err := canceled.Start(ctx, local.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("start with a canceled context: %v, %v", s, err)
	}
	mustBeEmpty(t, temp)
}

func TestRestart_losesNoCommittedRow(t *testing.T) {
	pgtest.Long(t, "it starts servers")
	t.Parallel()
	s := start(t, local.Options{Fsync: true, InMemory: true})
	address := s.URL("postgres")
	for round, restart := range []struct {
		name string
		run  func(*local.Server, context.Context) error
	}{
		{"an immediate shutdown", (*local.Server).Restart},
		{"a SIGKILL", (*local.Server).Crash},
		{"another SIGKILL", (*local.Server).Crash},
		{"another immediate shutdown", (*local.Server).Restart},
	} {
		client, idle := connect(t, s, "postgres"), connect(t, s, "postgres")
		table := fmt.Sprintf("kept_%d", round)
		if _, err := client.Exec(t.Context(), `create table `+table+` as select 'row' as value`); err != nil {
			t.Fatal(err)
		}
		if err := restart.run(s, t.Context()); err != nil {
			t.Fatalf("%s: %v", restart.name, err)
		}
		server := watch(t, s.Folder())
		if !server.running(t) {
			t.Errorf("after %s the folder and the data are not locked", restart.name)
		}
		server.close()
		for _, c := range []*pgx.Conn{client, idle} {
			if err := c.Ping(t.Context()); err == nil {
				t.Errorf("a client stayed connected during %s: the server never went down", restart.name)
			}
		}
		if s.URL("postgres") != address {
			t.Errorf("%s changed the address from %s to %s", restart.name, address, s.URL("postgres"))
		}
		if got := ask(t, connect(t, s, "postgres"), `select value from `+table); got != "row" {
			t.Errorf("after %s the committed row reads %q", restart.name, got)
		}
	}
	closeWithoutATrace(t, s)
}

func closeWithoutATrace(t *testing.T, s *local.Server) {
	t.Helper()
	server := watch(t, s.Folder())
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	server.mustEndWithoutAFolder(t)
}

// start starts a server that the test's end closes.
func start(t *testing.T, o local.Options) *local.Server {
	t.Helper()
	s, err := local.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the server: %v", err)
		}
	})
	return s
}

func connect(t *testing.T, s *local.Server, database string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL(database))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func ask(t *testing.T, conn *pgx.Conn, question string) string {
	t.Helper()
	var answer string
	if err := conn.QueryRow(t.Context(), question).Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

// traces are the locks of one server: while a process of it lives, its keeper
// and its starter included, at least one is held. The open files see them also
// after the folder was removed.
type traces struct {
	path         string
	folder, data *os.File
}

func watch(t *testing.T, path string) *traces {
	t.Helper()
	left := &traces{path: path}
	var err error
	if left.folder, err = os.Open(path); err != nil {
		t.Fatal(err)
	}
	if left.data, err = os.Open(filepath.Join(path, "data")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(left.close)
	return left
}

func (left *traces) close() {
	_ = left.folder.Close()
	_ = left.data.Close()
}

// running says whether both the keeper and the server live.
func (left *traces) running(t *testing.T) bool {
	t.Helper()
	return locked(t, left.folder) && locked(t, left.data)
}

// mustEndWithoutAFolder waits for every process to end, and looks whether the
// folder was removed.
func (left *traces) mustEndWithoutAFolder(t *testing.T) {
	t.Helper()
	await.True(t, "the server's processes end", func() bool { return !locked(t, left.data) })
	await.True(t, "its keeper ends", func() bool { return !locked(t, left.folder) })
	if _, err := os.Stat(left.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func locked(t *testing.T, file *os.File) bool {
	t.Helper()
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true
	}
	if err == nil {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
	}
	if err != nil {
		t.Fatal(err)
	}
	return false
}
