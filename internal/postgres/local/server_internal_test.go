package local

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
	"github.com/payonce/payonce/internal/testrun"
)

// TestMain runs the tests or, in a process that a test started, the process that the test
// kills. That process gets no help from testrun: what it leaves is what is tested.
func TestMain(m *testing.M) {
	if mode := os.Getenv(starterVariable); mode != "" {
		os.Exit(runStarter(mode))
	}
	testrun.Main(m)
}

func TestServer_usesItsSettingsAndIsApartFromOthers(t *testing.T) {
	long(t)
	t.Parallel()
	durable := startOn(t, thisMachine(), Options{Fsync: true, InMemory: true})
	fast := startOn(t, thisMachine(), Options{InMemory: true, Settings: map[string]string{"max_connections": "33", "application_name": "a b"}})
	for name, want := range map[string][2]string{
		"fsync":              {"on", "off"},
		"full_page_writes":   {"on", "off"},
		"synchronous_commit": {"on", "off"},
		"max_connections":    {"300", "33"},
		"application_name":   {"", "a b"},
		"listen_addresses":   {"", ""},
		"server_encoding":    {"UTF8", "UTF8"},
	} {
		for i, s := range []*Server{durable, fast} {
			if got := ask(t, s, "postgres", "show "+name); got != want[i] {
				t.Errorf("%s is %q, want %q", name, got, want[i])
			}
		}
	}
	closeWithoutATrace(t, durable)
	if got := ask(t, fast, "postgres", `select current_user`); got != "postgres" {
		t.Errorf("the URL of the other server connects as %q, want postgres", got)
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
	s := startOn(t, thisMachine(), Options{InMemory: true})
	if version := ask(t, s, "postgres", `show server_version`); !strings.Contains(string(out), version) {
		t.Errorf("version %s runs, PG_BIN holds %s", version, out)
	}
}

// The server has no cache, so initdb and what it makes lie in the server's folder.
func TestServer_whoseKeeperWasKilled_isClosedWithoutATrace(t *testing.T) {
	long(t)
	t.Parallel()
	found, err := thisMachine().find(t.Context(), theAccount(t))
	if err != nil {
		t.Fatal(err)
	}
	uncached := thisMachine()
	uncached.bin, uncached.cache = found.bin, "" // the programs may be in the cache
	s := startOn(t, uncached, Options{InMemory: true})
	if err := syscall.Kill(s.keeper.command.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	closeWithoutATrace(t, s)
}

func TestCreateDatabase_calledSeveralTimesAtOnce_createsOne(t *testing.T) {
	t.Parallel()
	s := startOn(t, thisMachine(), Options{InMemory: true})
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
	if got := ask(t, s, name, `select current_database()`); got != name {
		t.Errorf("the URL of %q leads to %q", name, got)
	}
}

func TestStart_thatFails_leavesNothing(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx      context.Context
		settings map[string]string
		want     func(error) bool
	}{
		"the error quotes the server's log": {
			t.Context(),
			map[string]string{"no_such_setting": "1"},
			func(err error) bool { return err != nil && strings.Contains(err.Error(), "no_such_setting") },
		},
		"the context is canceled": {canceled, nil, func(err error) bool { return errors.Is(err, context.Canceled) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := thisMachine()
			m.temp = publicFolder(t)
			if _, err := m.start(test.ctx, Options{Settings: test.settings}); !test.want(err) {
				t.Errorf("the error is %v", err)
			}
			mustBeEmpty(t, m.temp)
		})
	}
}

func TestRestart_losesNoCommittedRow(t *testing.T) {
	long(t)
	t.Parallel()
	s := startOn(t, thisMachine(), Options{Fsync: true, InMemory: true})
	address := s.URL("postgres")
	for round, restart := range []struct {
		name string
		run  func(*Server, context.Context) error
	}{
		{"an immediate shutdown", (*Server).Restart},
		{"a SIGKILL", (*Server).Crash},
		{"another SIGKILL", (*Server).Crash},
		{"another immediate shutdown", (*Server).Restart},
	} {
		client := connect(t, s, "postgres")
		table := fmt.Sprintf("kept_%d", round)
		if _, err := client.Exec(t.Context(), `create table `+table+` as select 'row' as value`); err != nil {
			t.Fatal(err)
		}
		if err := restart.run(s, t.Context()); err != nil {
			t.Fatalf("%s: %v", restart.name, err)
		}
		server := watch(t, s.folder.path)
		if !server.running(t) {
			t.Errorf("after %s the folder and the data are not locked", restart.name)
		}
		server.close()
		if err := client.Ping(t.Context()); err == nil {
			t.Errorf("a client stayed connected during %s: the server never went down", restart.name)
		}
		if s.URL("postgres") != address {
			t.Errorf("%s changed the address from %s to %s", restart.name, address, s.URL("postgres"))
		}
		if got := ask(t, s, "postgres", `select value from `+table); got != "row" {
			t.Errorf("after %s the committed row reads %q", restart.name, got)
		}
	}
	closeWithoutATrace(t, s)
}

// A child process has copies of our open files between fork and exec, and with them a lock
// that this process has released.
func TestLock_waitsUntilTheLockIsReleased(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	held, err := lock(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lock(canceled, folder); !errors.Is(err, context.Canceled) {
		t.Errorf("the wait for a held lock ends with %v", err)
	}
	locked := make(chan error, 1)
	go func() {
		_, err := lock(t.Context(), folder)
		locked <- err
	}()
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Error("after the lock was released:", err)
	}
}

func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not run in short mode: it starts servers")
	}
}

func theAccount(t *testing.T) account {
	t.Helper()
	a, err := serverAccount()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// startOn starts a server that the test's end closes.
func startOn(t *testing.T, m machine, o Options) *Server {
	t.Helper()
	s, err := m.start(t.Context(), o)
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

func connect(t *testing.T, s *Server, database string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL(database))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func ask(t *testing.T, s *Server, database, question string) (answer string) {
	t.Helper()
	if err := connect(t, s, database).QueryRow(t.Context(), question).Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

func closeWithoutATrace(t *testing.T, s *Server) {
	t.Helper()
	server := watch(t, s.folder.path)
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	server.mustEndWithoutAFolder(t)
}

// traces are the locks of one server: while a process of it lives, its keeper and its
// starter included, at least one is held. The open files show it also after the folder was
// removed.
type traces struct {
	path         string
	folder, data *os.File
}

func watch(t *testing.T, path string) *traces {
	t.Helper()
	folder, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.Open(filepath.Join(path, "data"))
	if err != nil {
		t.Fatal(err)
	}
	left := &traces{path, folder, data}
	t.Cleanup(left.close)
	return left
}

func (left *traces) close() { _, _ = left.folder.Close(), left.data.Close() }

// running reports whether both the keeper and the server live.
func (left *traces) running(t *testing.T) bool {
	t.Helper()
	return locked(t, left.folder) && locked(t, left.data)
}

// mustEndWithoutAFolder waits for the end of every process, and checks that the folder was
// removed.
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

// publicFolder is a temporary folder that the server's account can use too, with a path
// short enough for a socket.
func publicFolder(t *testing.T) string {
	t.Helper()
	parent := os.TempDir()
	if len(parent)+len("/p-4294967295") > longestParent {
		parent = "/tmp"
	}
	folder, err := os.MkdirTemp(parent, "p-*") //nolint:usetesting // t.TempDir is closed to other accounts
	if err == nil {
		err = os.Chmod(folder, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	return folder
}

func entries(t *testing.T, folder string) (names []string) {
	t.Helper()
	found, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range found {
		names = append(names, entry.Name())
	}
	return names
}

func mustBeEmpty(t *testing.T, folder string) {
	t.Helper()
	if names := entries(t, folder); len(names) > 0 {
		t.Errorf("left in %s: %v", folder, names)
	}
}
