package local_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/postgres/pgtest"
)

func TestServer(t *testing.T) {
	t.Parallel()

	t.Run("closing leaves neither process nor folder", func(t *testing.T) {
		t.Parallel()
		s := start(t, local.Options{})
		if got := ask(t, connect(t, s, "postgres"), `select current_user`); got != "postgres" {
			t.Errorf("the URL connects as %q, want postgres", got)
		}
		left := watch(t, s.Folder())
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		left.mustBeNothing(t)
		if err := s.Close(); err != nil {
			t.Errorf("close again: %v", err)
		}
		if err := s.Restart(t.Context()); err == nil {
			t.Error("a closed server restarted")
		}
	})

	t.Run("it is set up as asked and listens on no network", func(t *testing.T) {
		t.Parallel()
		durable := start(t, local.Options{Fsync: true})
		fast := start(t, local.Options{Settings: map[string]string{"max_connections": "33", "application_name": "a b"}})
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
	})

	t.Run("a server that cannot start says why and leaves nothing", func(t *testing.T) {
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
	})

	t.Run("a start that is given up leaves nothing", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if s, err := local.Start(ctx, local.Options{}); !errors.Is(err, context.Canceled) {
			t.Errorf("start with an ended context: %v, %v", s, err)
		}
	})

	t.Run("a database is created once", func(t *testing.T) {
		t.Parallel()
		s := start(t, local.Options{})
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
	})

	t.Run("two at once do not meet", func(t *testing.T) {
		t.Parallel()
		a, b := start(t, local.Options{}), start(t, local.Options{})
		if err := a.CreateDatabase(t.Context(), "mine"); err != nil {
			t.Fatal(err)
		}
		const known = `select count(*)::text from pg_database where datname = 'mine'`
		if in, out := ask(t, connect(t, a, "postgres"), known), ask(t, connect(t, b, "postgres"), known); in != "1" || out != "0" {
			t.Errorf("the database is %s times in its server and %s times in the other", in, out)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if got := ask(t, connect(t, b, "postgres"), known); got != "0" {
			t.Errorf("the other server answers %s after the first was closed", got)
		}
	})
}

func TestRestart(t *testing.T) {
	pgtest.Long(t, "it starts servers")
	t.Parallel()
	for name, again := range map[string]func(*local.Server, context.Context) error{
		"an immediate shutdown": (*local.Server).Restart,
		"a SIGKILL":             (*local.Server).Crash,
	} {
		t.Run(name+" loses no committed row", func(t *testing.T) {
			t.Parallel()
			s := start(t, local.Options{Fsync: true})
			address := s.URL("postgres")
			client, idle := connect(t, s, "postgres"), connect(t, s, "postgres")
			if _, err := client.Exec(t.Context(), `create table kept as select 'row' as value`); err != nil {
				t.Fatal(err)
			}
			for round := range 2 {
				left := watch(t, s.Folder())
				if err := again(s, t.Context()); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				if !left.keeping(t) {
					t.Errorf("round %d: the folder and the data are not locked after it", round)
				}
				left.close()
			}
			for _, c := range []*pgx.Conn{client, idle} {
				if err := c.Ping(t.Context()); err == nil {
					t.Error("a client stayed connected: the server never went down")
				}
			}
			if s.URL("postgres") != address {
				t.Errorf("the address changed from %s to %s", address, s.URL("postgres"))
			}
			if got := ask(t, connect(t, s, "postgres"), `select value from kept`); got != "row" {
				t.Errorf("the committed row reads %q", got)
			}
			left := watch(t, s.Folder())
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			left.mustBeNothing(t)
		})
	}
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

// keeping says whether both the keeper and the server live.
func (left *traces) keeping(t *testing.T) bool {
	t.Helper()
	return locked(t, left.folder) && locked(t, left.data)
}

// mustBeNothing waits for every process to end, and the folder to be removed.
func (left *traces) mustBeNothing(t *testing.T) {
	t.Helper()
	eventually(t, "the server's processes end", func() bool { return !locked(t, left.data) })
	eventually(t, "its keeper ends", func() bool { return !locked(t, left.folder) })
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

// eventually waits for a condition, 15 s at most.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			t.Fatalf("still not so: %s", what)
		case <-tick.C:
		}
	}
}
