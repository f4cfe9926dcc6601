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
// The library embedded-postgres runs no server for root, and none that is installed. The package is apart
// from postgres: no program that uses a database may start one.
package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
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
	// full_page_writes and synchronous_commit are off, and Restart may lose the
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
	log     bytes.Buffer  // may be read when ended is closed
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
	err = s.prepare(ctx, o, m)
	if err == nil {
		err = s.run(ctx)
	}
	if err != nil {
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

// prepare fills the data folder. Dynamic shared memory lies in the folder too, so that a killed server
// leaves none outside it.
func (s *Server) prepare(ctx context.Context, o Options, m machine) error {
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
		err = s.account.run(ctx, "cp", "-R", template+"/.", s.data())
	}
	if err != nil {
		return fmt.Errorf("create a database cluster: %w", err)
	}
	settings := map[string]string{
		"listen_addresses": "", "max_connections": "300", "dynamic_shared_memory_type": "mmap",
		"logging_collector": "off", "log_min_messages": "fatal",
	}
	if !o.Fsync {
		maps.Copy(settings, map[string]string{"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"})
	}
	maps.Copy(settings, o.Settings)
	s.command = []string{filepath.Join(found.bin, "postgres"), "-D", s.data(), "-k", s.dir.Path, "-p", port}
	for name, value := range settings {
		s.command = append(s.command, "-c", name+"="+value)
	}
	return nil
}

// URL returns the connection string of a database, the same for the server's
// whole life.
func (s *Server) URL(database string) string {
	host := strings.ReplaceAll(url.QueryEscape(s.dir.Path), "%2F", "/")
	return "postgres://postgres@/" + url.PathEscape(database) + "?host=" + host + "&port=" + port + "&connect_timeout=30" // it listens: only a busy machine is slow
}

// Restart shuts the server down at once, without a checkpoint and without waiting for
// clients, and starts it at the same address, as pg_ctl restart -m immediate does. It
// returns when the server has recovered and accepts connections. After an error the server
// may be down: Restart may be called again, and Close still removes everything.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("restart PostgreSQL: it is closed")
	}
	if err := s.stop(ctx, syscall.SIGQUIT); err != nil {
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
	process, ended := s.account.command(context.WithoutCancel(ctx), s.command[0], s.command[1:]...), make(chan struct{})
	s.log.Reset()
	process.Stdout, process.Stderr = &s.log, &s.log
	if err := process.Start(); err != nil {
		s.process = nil
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	s.process, s.ended = process, ended
	go func() {
		defer close(ended)
		_ = process.Wait() // until each process of the server has closed the log, which says more than the exit status
	}()
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-time.After(5 * time.Millisecond):
			continue
		case <-ended:
		case <-ctx.Done():
		}
		if stopped := s.stop(context.WithoutCancel(ctx), syscall.SIGQUIT); stopped != nil {
			return fmt.Errorf("start PostgreSQL: %w", errors.Join(err, stopped))
		}
		return fmt.Errorf("start PostgreSQL: %w: %s", err, lastLines(s.log.Bytes()))
	}
}

// Standby starts a hot standby of the server: a copy of its data folder that follows it by
// streaming replication, under the name "standby". The server is stopped for the copy and
// runs when Standby returns. To wait for the standby at each commit, set
// synchronous_standby_names to standby; select pg_promote() promotes it.
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	standby, err := newServer(filepath.Dir(s.dir.Path), s.account)
	if err != nil {
		return nil, err
	}
	for _, argument := range s.command {
		standby.command = append(standby.command, strings.Replace(argument, s.dir.Path, standby.dir.Path, 1))
	}
	err = s.stop(ctx, syscall.SIGINT)
	if err == nil {
		follow := fmt.Sprintf("primary_conninfo = 'host=%s port=%s user=postgres application_name=standby'", s.dir.Path, port)
		err = s.account.run(ctx, "/bin/sh", "-c", `cp -R "$1/." "$2" && echo "$3" >"$2/postgresql.auto.conf" && : >"$2/standby.signal"`,
			"sh", s.data(), standby.data(), follow)
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
