// Package local runs a PostgreSQL server for a demonstration or a test, with nothing set
// up beforehand.
//
// # Guarantees
//
//   - Start runs a server of version 15 or newer that is found on the machine (PG_BIN, PATH,
//     pg_config --bindir, /usr/lib/postgresql, Homebrew), or else one downloaded from Maven
//     Central or the repository that POSTGRES_BINARIES_URL names. The checksums of the
//     downloads are a part of this package.
//   - For root, the server runs as the user postgres or an unprivileged one.
//   - It listens on a Unix socket in a folder of its own, never on TCP.
//   - No process and no folder outlives the process that started it, also after Ctrl-C or
//     SIGKILL: see Dir.
//
// # Limits
//
// A cache stays: the result of initdb, and a downloaded server. It lies in the user's cache
// folder, for root in the machine's. Close removes the data. It is no way to run a
// production database: every user who can open the folder is superuser.
//
// The library embedded-postgres runs no server for root, and none that is installed; this package takes
// the same binaries where there is none. It is apart from postgres, which no program that uses a
// database may start.
package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/loop"
)

// The port is only a part of the socket's name. It is always given, since PGPORT would
// change it for the server and for clients.
const port = "5432"

const (
	prefix = "payonce-pg-"
	// longestParent leaves room for the path of a socket, which has at most 103 bytes on
	// macOS and 107 on Linux: /payonce-pg-4294967295/.s.PGSQL.5432 are 36.
	longestParent = 103 - 36
	// memory is where Linux keeps files in memory, and memoryNeeded what the server of a
	// test process may come to fill of it.
	memory       = "/dev/shm"
	memoryNeeded = 4 << 30 // bytes
	// startPatience bounds a start on a busy machine, recovery after a crash included, and
	// stopPatience a stop. PostgreSQL itself kills what is left of its processes after 5 s.
	startPatience = 5 * time.Minute
	stopPatience  = 2 * time.Minute
)

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
	dir     *Dir
	command []string // that starts the server

	mu      sync.Mutex
	process *exec.Cmd     // nil before the first start
	log     tail          // may be read when ended is closed
	ended   chan struct{} // closed when no process of the server is left
	closed  bool
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
	s, err := newServer(m.parent(ctx, a, o.InMemory), a)
	if err != nil {
		return nil, err
	}
	if err := s.start(ctx, o, m); err != nil {
		return nil, errors.Join(err, s.Close()) //nolint:contextcheck // Close bounds itself
	}
	return s, nil
}

// parent returns the folder to make a server's folder in.
func (m machine) parent(ctx context.Context, a account, inMemory bool) string {
	var free syscall.Statfs_t
	if inMemory && !strings.HasPrefix(m.temp, memory+"/") && syscall.Statfs(memory, &free) == nil &&
		free.Bavail*uint64(free.Bsize) >= memoryNeeded && a.mayWrite(ctx, memory) {
		return memory
	}
	if len(m.temp) <= longestParent && a.mayWrite(ctx, m.temp) {
		return m.temp
	}
	return "/tmp"
}

// newServer makes the folder of a server, which belongs to the account.
func newServer(parent string, a account) (*Server, error) {
	dir, err := NewDir(parent, prefix)
	if err != nil {
		return nil, fmt.Errorf("make a folder for PostgreSQL: %w", err)
	}
	s := &Server{account: a, dir: dir}
	if err := errors.Join(os.Mkdir(s.data(), 0o700), a.give(s.data()), a.give(dir.Path)); err != nil {
		return nil, errors.Join(fmt.Errorf("make a folder for PostgreSQL: %w", err), dir.Close())
	}
	return s, nil
}

func (s *Server) data() string { return filepath.Join(s.dir.Path, dataFolder) }

func (s *Server) start(ctx context.Context, o Options, m machine) error {
	if m.cache == "" {
		m.cache = filepath.Join(s.dir.Path, "cache")
		if err := os.Mkdir(m.cache, 0o755); err != nil {
			return fmt.Errorf("make a folder for PostgreSQL: %w", err)
		}
	}
	found, err := m.find(ctx, s.account)
	if err != nil {
		return err
	}
	template, err := m.template(ctx, s.account, found)
	if err == nil {
		err = s.fill(ctx, template)
	}
	if err != nil {
		return fmt.Errorf("create a database cluster: %w", err)
	}
	s.command = []string{
		filepath.Join(found.bin, "postgres"),
		"-D", s.data(), "-k", s.dir.Path, "-p", port, "-c", "listen_addresses=",
	}
	settings := o.settings()
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		s.command = append(s.command, "-c", name+"="+settings[name])
	}
	return s.run(ctx)
}

// fill copies a data folder.
func (s *Server) fill(ctx context.Context, from string) error {
	return s.account.run(ctx, "cp", "-R", from+"/.", s.data())
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
	host := strings.ReplaceAll(url.QueryEscape(s.dir.Path), "%2F", "/")
	return "postgres://postgres@/" + url.PathEscape(database) + "?host=" + host + "&port=" + port + "&connect_timeout=30" // it listens: only a busy machine is slow
}

// CreateDatabase creates an empty database.
func (s *Server) CreateDatabase(ctx context.Context, name string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()); err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// Restart shuts the server down at once, without a checkpoint and without waiting for
// clients, and starts it at the same address, as pg_ctl restart -m immediate does. It
// returns when the server has recovered and accepts connections. After an error the server
// may be down: Restart may be called again, and Close still removes everything.
func (s *Server) Restart(ctx context.Context) error { return s.restart(ctx, syscall.SIGQUIT) }

// Crash is Restart with a SIGKILL of the server's first process. It waits until the other
// processes have ended, which a long query delays.
func (s *Server) Crash(ctx context.Context) error { return s.restart(ctx, syscall.SIGKILL) }

func (s *Server) restart(ctx context.Context, signal syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("restart PostgreSQL: it is closed")
	}
	if err := s.stop(ctx, signal); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	return s.run(ctx)
}

// Close stops the server and removes its folder. Closing again does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return errors.Join(s.stop(context.Background(), syscall.SIGQUIT), s.dir.Close())
}

// stop sends the server a signal and waits until none of its processes is left.
func (s *Server) stop(ctx context.Context, signal syscall.Signal) error {
	if s.process == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	_ = s.process.Process.Signal(signal) // it may have ended
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for PostgreSQL to end: %w", context.Cause(ctx))
	}
}

// run starts the server and waits until it accepts connections.
func (s *Server) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	s.process, s.log, s.ended = s.account.command(context.WithoutCancel(ctx), s.command[0], s.command[1:]...), nil, make(chan struct{})
	s.process.Stdout, s.process.Stderr = &s.log, &s.log
	if err := s.process.Start(); err != nil {
		s.process = nil
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	go func(process *exec.Cmd, ended chan struct{}) {
		defer close(ended)
		_ = process.Wait() // until each process of the server has closed the log, which says more than the exit status
	}(s.process, s.ended)
	var refused error
	err := poll(ctx, func() (bool, error) {
		var conn *pgx.Conn
		if conn, refused = s.connect(ctx); refused == nil {
			return true, conn.Close(ctx)
		}
		select {
		case <-s.ended:
			return false, errors.New("it ended at once")
		default:
			return false, nil
		}
	})
	if err != nil {
		err = errors.Join(err, s.stop(context.WithoutCancel(ctx), syscall.SIGQUIT))
		return fmt.Errorf("start PostgreSQL: %w (%w): %s", err, refused, lastLines(s.log))
	}
	return nil
}

func (s *Server) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL in %s: %w", s.dir.Path, err)
	}
	return conn, nil
}

// tail keeps the end of what is written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	const kept = 1 << 12 // bytes
	*t = append(*t, p...)
	*t = (*t)[max(0, len(*t)-kept):]
	return len(p), nil
}

// poll calls done until it returns true or an error, or ctx ends.
func poll(ctx context.Context, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if !loop.Pause(ctx, 5*time.Millisecond, nil) {
			return context.Cause(ctx)
		}
	}
}

// Standby starts a hot standby of the server: a copy of its data folder that follows it by
// streaming replication, under the name "standby". The server is stopped for the copy and
// runs when Standby returns. To wait for the standby at each commit, set
// synchronous_standby_names to standby; select pg_promote() promotes it.
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("start a standby: the server is closed")
	}
	standby, err := newServer(filepath.Dir(s.dir.Path), s.account)
	if err != nil {
		return nil, err
	}
	for _, argument := range s.command {
		standby.command = append(standby.command, strings.Replace(argument, s.dir.Path, standby.dir.Path, 1))
	}
	err = s.stop(ctx, syscall.SIGINT)
	if err == nil {
		err = standby.copyFrom(ctx, s)
	}
	if err == nil {
		err = s.run(ctx)
	}
	if err == nil {
		err = standby.run(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a standby: %w", err), standby.Close()) //nolint:contextcheck // Close bounds itself
	}
	return standby, nil
}

// copyFrom fills the data folder from that of a stopped primary, so that it starts as its
// standby.
func (s *Server) copyFrom(ctx context.Context, primary *Server) error {
	if err := s.fill(ctx, primary.data()); err != nil {
		return err
	}
	follow := fmt.Sprintf("primary_conninfo = 'host=%s port=%s user=postgres application_name=standby'\n", primary.dir.Path, port)
	for name, content := range map[string]string{"standby.signal": "", "postgresql.auto.conf": follow} {
		path := filepath.Join(s.data(), name)
		if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), s.account.give(path)); err != nil {
			return err
		}
	}
	return nil
}
