package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestMain runs the tests or, in a process that a test started, the process that the test
// kills. Package testrun uses this one, so the tests do without it.
func TestMain(m *testing.M) {
	if mode := os.Getenv(starterVariable); mode != "" {
		os.Exit(runStarter(mode))
	}
	os.Exit(m.Run())
}

// The fast server has no cache, so initdb and what it makes lie in the server's folder.
func TestServer_usesItsSettingsRestartsAndIsApartFromOthers(t *testing.T) {
	long(t)
	t.Parallel()
	uncached := thisMachine()
	found, err := uncached.find(t.Context(), theAccount(t))
	must(t, err)
	uncached.bin, uncached.cache = found.bin, "" // the programs may be in the cache
	durable := startOn(t, thisMachine(), Options{Fsync: true, InMemory: true})
	fast := startOn(t, uncached, Options{InMemory: true, Settings: map[string]string{"max_connections": "33", "application_name": "a b"}})
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
			if got := ask(t, s, "show "+name); got != want[i] {
				t.Errorf("%s is %q, want %q", name, got, want[i])
			}
		}
	}
	client := connectTo(t, durable.URL("postgres"))
	_, err = client.Exec(t.Context(), `create table kept as select 'row' as value`)
	must(t, err)
	must(t, durable.Restart(t.Context()))
	if got := ask(t, durable, `select value from kept`); got != "row" || client.Ping(t.Context()) == nil {
		t.Errorf("after a restart the committed row reads %q, or a client stayed connected", got)
	}
	closeWithoutATrace(t, durable)
	if got := ask(t, fast, `select current_user`); got != "postgres" {
		t.Errorf("the URL of the other server connects as %q, want postgres", got)
	}
	if err := durable.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	if err := durable.Restart(t.Context()); err == nil {
		t.Error("a closed server restarted")
	}
	closeWithoutATrace(t, fast)
}

func TestStart_thatFails_leavesNothing(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx      context.Context
		settings map[string]string
		says     string
	}{
		"the error quotes the server's log": {t.Context(), map[string]string{"no_such_setting": "1"}, "no_such_setting"},
		"the context is canceled":           {canceled, nil, context.Canceled.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := thisMachine()
			m.temp = publicFolder(t)
			if _, err := m.start(test.ctx, Options{Settings: test.settings}); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error is %v", err)
			}
			mustBeEmpty(t, m.temp)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await waits until something holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds(); {
		if time.Now().After(end) {
			t.Fatal(what)
		}
		<-time.After(5 * time.Millisecond)
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
	must(t, err)
	return a
}

// startOn starts a server that the test's end closes.
func startOn(t *testing.T, m machine, o Options) *Server {
	t.Helper()
	s, err := m.start(t.Context(), o)
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the server: %v", err)
		}
	})
	return s
}

func connectTo(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func ask(t *testing.T, s *Server, question string) (answer string) {
	t.Helper()
	must(t, connectTo(t, s.URL("postgres")).QueryRow(t.Context(), question).Scan(&answer))
	return answer
}

func closeWithoutATrace(t *testing.T, s *Server) {
	t.Helper()
	client := connectTo(t, s.URL("postgres"))
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if client.Ping(t.Context()) == nil {
		t.Error("the server runs after it was closed")
	}
	if _, err := os.Stat(s.dir.Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
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
	must(t, err)
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
	must(t, err)
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
