// Package local runs a PostgreSQL server for a demonstration or a test, with nothing set
// up beforehand.
//
// # Guarantees
//
//   - Start runs a server of version 15 or newer that is found on the machine (PG_BIN, PATH,
//     pg_config --bindir, /usr/lib/postgresql, Homebrew), or else one downloaded from Maven
//     Central or the repository that POSTGRES_BINARIES_URL names. The checksums of the
//     downloads are a part of this package.
//   - For root, the server runs as the user postgres or nobody.
//   - It listens on a Unix socket in a folder of its own, never on TCP.
//   - No process and no folder outlives the process that started it, also after Ctrl-C or
//     SIGKILL: a shell waits on a pipe from the starter, and stops the server and removes
//     the folder when the pipe ends. If that shell is killed too, the next Start does both.
//
// # Limits
//
// A cache stays: the result of initdb, and a downloaded server. It lies in the user's cache
// folder, for root in the machine's. Close removes the data. It is no way to run a
// production database: every user who can open the folder is superuser.
package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The port is only a part of the socket's name. It is always given, since PGPORT would
// change it for the server and for clients.
const port = "5432"

// Codes with which PostgreSQL refuses to create a database that exists already, or since
// a moment ago.
const (
	duplicateDatabase = "42P04"
	uniqueViolation   = "23505"
)

// startPatience bounds a start on a busy machine, recovery after a crash included. A
// server that ends before it accepts connections is noticed at once.
const startPatience = 5 * time.Minute

// Options are how a server is started.
type Options struct {
	// Fsync makes a commit survive a crash of the machine. Without it fsync,
	// full_page_writes and synchronous_commit are off, and Restart and Crash may lose the
	// latest commits.
	Fsync bool
	// InMemory puts the server's files into memory where the system offers enough of it:
	// to clone a database on disk takes about 15 times as long. The files survive every
	// crash but one of the machine, whatever Fsync says.
	InMemory bool
	// Settings are server settings by name; they override those of Start.
	Settings map[string]string
}

// Server is a running server. Its methods may be called by several goroutines.
type Server struct {
	account account
	folder  *folder
	command []string // that starts the server

	mu     sync.Mutex
	keeper *keeper
	closed bool
}

// Start starts a server and returns when it accepts connections. ctx bounds the start
// alone, a download included. Where no server is found and none can be downloaded, the
// error is one sentence that says what to install.
func Start(ctx context.Context, o Options) (*Server, error) {
	return thisMachine().start(ctx, o)
}

func (m machine) start(ctx context.Context, o Options) (*Server, error) {
	a, err := serverAccount()
	if err != nil {
		return nil, err
	}
	f, err := m.makeFolder(ctx, a, o.InMemory)
	if err != nil {
		return nil, fmt.Errorf("make a folder for PostgreSQL: %w", err)
	}
	s := &Server{account: a, folder: f}
	if err := s.start(ctx, o, m); err != nil {
		return nil, errors.Join(err, s.close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, o Options, m machine) error {
	if m.cache == "" {
		m.cache = filepath.Join(s.folder.path, "cache")
		if err := os.Mkdir(m.cache, 0o755); err != nil {
			return fmt.Errorf("make a folder for PostgreSQL: %w", err)
		}
	}
	found, err := m.find(ctx, s.account)
	if err != nil {
		return err
	}
	template, err := m.template(ctx, s.account, found)
	if err != nil {
		return fmt.Errorf("create a database cluster: %w", err)
	}
	s.command = []string{
		filepath.Join(found.bin, "postgres"),
		"-D", s.folder.data(), "-k", s.folder.path, "-p", port, "-c", "listen_addresses=",
	}
	settings := o.settings()
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		s.command = append(s.command, "-c", name+"="+settings[name])
	}
	return s.run(ctx, template)
}

// settings are what differs from PostgreSQL's defaults. Dynamic shared memory lies in the
// folder, so that a killed server leaves none outside it.
func (o Options) settings() map[string]string {
	settings := map[string]string{
		"max_connections":            "300",
		"dynamic_shared_memory_type": "mmap",
		"logging_collector":          "off",
	}
	if !o.Fsync {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
		settings["synchronous_commit"] = "off"
	}
	maps.Copy(settings, o.Settings)
	return settings
}

// URL returns the connection string of a database, the same for the server's
// whole life.
func (s *Server) URL(database string) string {
	host := strings.ReplaceAll(url.QueryEscape(s.folder.path), "%2F", "/")
	return "postgres://postgres@/" + url.PathEscape(database) + "?host=" + host + "&port=" + port
}

// CreateDatabase creates an empty database; one that exists is left as it is.
func (s *Server) CreateDatabase(ctx context.Context, name string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize())
	var refused *pgconn.PgError
	if errors.As(err, &refused) && (refused.Code == duplicateDatabase || refused.Code == uniqueViolation) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// Restart shuts the server down at once, without a checkpoint and without waiting for
// clients, and starts it at the same address, as pg_ctl restart -m immediate does. It
// returns when the server has recovered and accepts connections. After an error the server
// may be down: Restart may be called again, and Close still removes everything.
func (s *Server) Restart(ctx context.Context) error {
	return s.restart(ctx, "QUIT")
}

// Crash is Restart with a SIGKILL of the server's first process. It waits until the other
// processes have ended, which a long query delays.
func (s *Server) Crash(ctx context.Context) error {
	return s.restart(ctx, "KILL")
}

func (s *Server) restart(ctx context.Context, signal string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("restart PostgreSQL: it is closed")
	}
	if err := s.keeper.stop(ctx, signal); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	return s.run(ctx, "")
}

// Close stops the server and removes its folder. Closing again does nothing.
func (s *Server) Close() error {
	return s.close(context.Background())
}

func (s *Server) close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var err error
	if s.keeper != nil {
		err = s.keeper.stop(ctx, "")
	}
	// The keeper has done both, unless it was killed.
	return errors.Join(err, s.folder.stop(ctx, s.account), s.folder.remove())
}

// run waits for the end of the server that ran before, starts one in the folder, filled
// from the template if there is one, and waits until it accepts connections.
func (s *Server) run(ctx context.Context, template string) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	var err error
	if s.keeper, err = keep(ctx, s.account, s.folder, template, s.command); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	var refused error
	err = poll(ctx, func() (bool, error) {
		var conn *pgx.Conn
		if conn, refused = s.connect(ctx); refused == nil {
			return true, conn.Close(ctx)
		}
		ended, err := s.folder.ended()
		if ended {
			err = errors.New("it ended at once")
		}
		return false, err
	})
	if err != nil {
		out, _ := os.ReadFile(s.folder.log())
		return fmt.Errorf("start PostgreSQL: %w (%w): %s", err, refused, lastLines(out))
	}
	return nil
}

func (s *Server) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL in %s: %w", s.folder.path, err)
	}
	return conn, nil
}
