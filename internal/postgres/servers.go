package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrOldTimeline is returned, wrapped, for a server that a failover has replaced: another
// one, on a newer timeline of the same database, has answered this process before.
var ErrOldTimeline = errors.New("the database server was replaced in a failover and must not be used")

// servers are what a process has learned of the servers of its URL, through the sessions of a
// pool and of what copies its configuration. A promotion begins a new timeline. When a
// session shows one, every session of an older timeline is closed, though its server may
// hang and report nothing, and new sessions go first to the host of the newest.
//
// What no session has shown is not known here: to keep an old primary from accepting is
// the work of what promotes.
type servers struct {
	anyServer bool // also a read-only one: nothing is learned of it
	check     func(ctx context.Context, c *pgconn.PgConn) error

	mu       sync.Mutex
	system   string        // identifier of the database cluster
	timeline uint64        // the newest, 0 before the first session
	host     string        // of the newest session, with its port
	replaced chan struct{} // closed when a session shows a newer timeline
}

// closeSocket closes the socket of a session that failed: pgx waits up to 15 s for the server to close
// it, and the session keeps its place in the pool as long.
func closeSocket(c *pgx.Conn) {
	if c.IsClosed() {
		_ = c.PgConn().Conn().Close()
	}
}

// beforeConnect prepares each attempt to connect, which tries the hosts one after the other. It begins
// with the host of the newest session or, where that may be gone, with the others. A connection that
// is established dials nothing: only a cancel request would (see guardSessions).
func (s *servers) beforeConnect(gone bool) func(context.Context, *pgx.ConnConfig) error {
	return func(_ context.Context, c *pgx.ConnConfig) error {
		readCertificates(c)
		s.order(c, gone)
		names := map[string]string{} // of resolved hosts
		lookup, dial, validate, established := c.LookupFunc, c.DialFunc, c.ValidateConnect, &atomic.Bool{}
		c.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
			addresses, err := lookup(ctx, host)
			for _, address := range addresses {
				names[address] = host
			}
			return addresses, err
		}
		c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			if established.Load() {
				return nil, errNoCancel
			}
			return dial(ctx, network, address)
		}
		c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			host := conn.Conn().RemoteAddr().String()
			if ip, port, err := net.SplitHostPort(host); err == nil && names[ip] != "" {
				host = net.JoinHostPort(names[ip], port)
			}
			err := s.admit(ctx, conn, host)
			if err == nil && s.anyServer && validate != nil { // target_session_attrs of the URL
				err = validate(ctx, conn)
			}
			established.Store(err == nil)
			return err
		}
		return nil
	}
}

// readCertificates reads the files anew that the URL names: certificates are renewed while a
// program runs. With files that cannot be read, such as half a new one, what was read at the
// start counts.
func readCertificates(c *pgx.ConnConfig) {
	read, err := pgx.ParseConfig(c.ConnString())
	if err != nil || len(read.Fallbacks) != len(c.Fallbacks) {
		return
	}
	renewed := c.Copy()
	renewed.TLSConfig = read.TLSConfig
	for i, f := range read.Fallbacks {
		renewed.Fallbacks[i].TLSConfig = f.TLSConfig
	}
	if unverifiedHost(&renewed.Config) == unverifiedHost(&c.Config) { // a service file may verify less by now
		c.TLSConfig, c.Fallbacks = renewed.TLSConfig, renewed.Fallbacks
	}
}

// order moves the host of the newest session to the front, or to the end.
func (s *servers) order(c *pgx.ConnConfig, toEnd bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var front, end []*pgconn.FallbackConfig
	for _, f := range hosts(&c.Config) {
		if _, host := pgconn.NetworkAddress(f.Host, f.Port); (host == s.host) == toEnd {
			end = append(end, f)
		} else {
			front = append(front, f)
		}
	}
	all := append(front, end...)
	c.Host, c.Port, c.TLSConfig, c.Fallbacks = all[0].Host, all[0].Port, all[0].TLSConfig, all[1:]
}

// sessionError is the error of CheckSession of the options.
type sessionError struct{ error }

func (e sessionError) Unwrap() error { return e.error }

// selectServer reads what tells servers apart. pg_control_checkpoint lags behind a promotion,
// the name of the WAL file does not. It also takes the bound that a role or a database sets from the
// session's transactions, where the server has one: PostgreSQL 17 or newer.
const selectServer = `
-- postgres.selectServer
select pg_catalog.current_setting('transaction_read_only'),
       system_identifier,
       case when pg_is_in_recovery() then '' else left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end,
       (select set_config(name, '0', false) from pg_settings where name = 'transaction_timeout')
  from pg_control_system()`

// admit takes a new session of a server that accepts writes, or refuses that of an older timeline.
// ErrReadOnly lets the next host of the URL be tried.
func (s *servers) admit(ctx context.Context, c *pgconn.PgConn, host string) error {
	answer := c.ExecParams(ctx, selectServer, nil, nil, nil, nil).Read()
	if answer.Err != nil || s.anyServer {
		return answer.Err
	}
	row := answer.Rows[0]
	if string(row[0]) != "off" {
		return ErrReadOnly
	}
	system := string(row[1])
	timeline, _ := strconv.ParseUint(string(row[2]), 16, 32) // eight hexadecimal digits of a server that takes writes
	if s.check != nil {
		if err := s.check(ctx, c); err != nil {
			return sessionError{err}
		}
	}
	return s.add(c, system, timeline, host)
}

// add takes a session. When another one shows a newer timeline, this one is closed, and its user gets an error.
func (s *servers) add(c *pgconn.PgConn, system string, timeline uint64, host string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if system == s.system && timeline < s.timeline {
		return fmt.Errorf("%w: it is on timeline %d, %s was on %d", ErrOldTimeline, timeline, s.host, s.timeline)
	}
	if system != s.system || timeline > s.timeline {
		close(s.replaced)
		s.replaced = make(chan struct{})
	}
	s.system, s.timeline, s.host = system, timeline, host
	go func(replaced <-chan struct{}) {
		select {
		case <-c.CleanupDone():
		case <-replaced:
			_ = c.Conn().Close() // with TLS it may wait 5 s for a server that hangs
		}
	}(s.replaced)
	return nil
}

// Timeline is the newest timeline of which the process had a session.
func (db *DB) Timeline() uint64 {
	db.servers.mu.Lock()
	defer db.servers.mu.Unlock()
	return db.servers.timeline
}

// Probe returns the configuration of a pool of one connection with the settings of the
// others. A new session of it, which is wanted when the last one has ended or does not answer,
// is looked for at the other hosts first. So a failover is found also while the old primary
// hangs.
func (db *DB) Probe() *pgxpool.Config {
	config := db.pool.Config()
	config.MaxConns, config.MinConns, config.MinIdleConns = 1, 0, 0
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	config.PingTimeout = probeTimeout
	config.BeforeConnect = db.servers.beforeConnect(true)
	return config
}

// Look connects to a server once, to the hosts first that are not the newest session's. So a
// failover is found also while the old primary answers. A host that hangs delays the next ones by its
// connect_timeout.
func (db *DB) Look(ctx context.Context) {
	config := db.pool.Config().ConnConfig
	if len(config.Fallbacks) == 0 {
		return
	}
	_ = db.servers.beforeConnect(true)(ctx, config)
	if conn, err := pgx.ConnectConfig(ctx, config); err == nil { // else no other host takes writes
		_ = conn.Close(ctx)
	}
}

const (
	connectTimeout = 3 * time.Second // of one host, where the URL has no connect_timeout
	probeTimeout   = time.Second / 4 // of an answer of the probe's session
	// silence is how long a network may acknowledge nothing that was sent.
	silence = 10 * time.Second
	// tcpUserTimeout is TCP_USER_TIMEOUT of Linux, in milliseconds.
	tcpUserTimeout = 18
)

// dial connects to a server. A connection ends when its network loses every packet: after
// silence if something was sent, else a little later.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence / 2, Interval: silence / 4, Count: 3}}
	if runtime.GOOS == "linux" && network != "unix" {
		d.Control = func(_, _ string, c syscall.RawConn) (err error) {
			controlled := c.Control(func(fd uintptr) {
				err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(silence.Milliseconds()))
			})
			return errors.Join(controlled, err)
		}
	}
	return d.DialContext(ctx, network, address)
}
