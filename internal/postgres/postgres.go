// Package postgres opens the database, reads from it and commits to it.
//
// # Guarantees
//
//   - A program never runs on a server that may lose a commit (fsync, full_page_writes or
//     synchronous_commit off, or the latter local), nor sends its data in plain text over a network, unless
//     Options allow it.
//   - Commit is the one way to write a decision. Its error says what became of the batch
//     (see groupcommit.OutcomeOf).
//   - The sessions have the settings that they were opened with, also behind a pooler.
//
// It owns no table. It needs groupcommit, and pgx for the rest: pgxpool checks no server, and leaves none
// after a failover.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
)

// ErrUnreachable is returned by Open, wrapped, for a server that does not answer.
var ErrUnreachable = errors.New("the database cannot be reached")

// Oldest is the oldest major version of the server that payonce supports.
const Oldest = 15

// Options shape a pool. Zero values mean the defaults named beside them.
type Options struct {
	// Application is the sessions' application_name.
	Application string
	// Role is what the sessions act as; the user of the URL unless set. The user
	// has to be a member of it, or a superuser.
	Role Role
	// RefusePrivileged refuses a user that may do more than Role, such as a superuser: an
	// attacker who has the program's password could leave Role by SET ROLE.
	RefusePrivileged bool
	// MaxConns bounds the pool; 20 unless set.
	MaxConns int32
	// LockTimeout ends a statement that waits longer for one lock (55P03);
	// 5 s unless set.
	LockTimeout time.Duration
	// StatementTimeout ends a statement that runs longer (57014); 10 s unless set.
	StatementTimeout time.Duration
	// Writes, CommitTimeout and Committed are Writes, Timeout and Committed of groupcommit.Options.
	Writes        *groupcommit.Statements
	CommitTimeout time.Duration
	Committed     func(names []string)
	// Settings are further settings of the sessions.
	Settings map[string]string
	// CheckSession, where set, is called with each new session of a server that accepts writes, before its
	// first use. A session for which it returns an error is closed; Open returns the error itself.
	CheckSession func(ctx context.Context, c *pgconn.PgConn) error
	// AllowReadOnly permits a server that refuses writes, such as a hot standby. It is
	// for programs that only read.
	AllowReadOnly bool
	// Tracer, where set, is called for each statement and batch.
	Tracer pgx.QueryTracer
	// AllowPlaintext permits a database over a network without TLS, or with TLS that does not
	// verify the server.
	AllowPlaintext bool
	// ExpectReplication refuses a server whose commits wait for no standby.
	ExpectReplication bool
	// AllowUnsafeDurability permits a server that may lose commits. Tests only.
	AllowUnsafeDurability bool
}

const (
	defaultConns       = 20
	defaultLockTimeout = 5 * time.Second
	// sharedLockTimeout is how long a group commit waits for a lock, unless LockTimeout is
	// shorter: groupcommit's default.
	sharedLockTimeout = 200 * time.Millisecond

	pingAfter = 1500 * time.Millisecond // that a session was idle; longer than a poll
)

// DB is a pool of connections and the one way to commit through them, for all merchants
// or, see Tenant, for one.
type DB struct {
	pool      *pgxpool.Pool
	merchant  string // "" for all
	committer *groupcommit.Committer
	servers   *servers
}

// Open connects and checks the server: its version, its durability settings, the privacy
// of the connection, and that its sessions have the settings which they were opened with.
// Each refusal is a sentence that says what to change.
func Open(ctx context.Context, url string, o Options) (*DB, error) {
	known := &servers{anyServer: o.AllowReadOnly, check: o.CheckSession, replaced: make(chan struct{})}
	config, err := poolConfig(url, o, known)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	err = checkServer(ctx, pool, o, config.ConnConfig.RuntimeParams)
	if err == nil && o.RefusePrivileged {
		err = checkUser(ctx, pool, o.Role)
	}
	if err != nil {
		pool.Close()
		if refused, ok := errors.AsType[sessionError](err); ok {
			return nil, refused.error
		}
		return nil, cmp.Or(o.Role.refusal(err, config.ConnConfig.User), err)
	}
	return &DB{pool: pool, servers: known, committer: groupcommit.New(pool, groupcommit.Options{
		Writes: o.Writes, Timeout: o.CommitTimeout, LockTimeout: min(cmp.Or(o.LockTimeout, defaultLockTimeout), sharedLockTimeout),
		SetTenant: QueueTenant, Confirm: replicated, Committed: o.Committed,
	})}, nil
}

func poolConfig(url string, o Options, known *servers) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(url)
	if _, missing := errors.AsType[*fs.PathError](err); missing {
		return nil, errors.New("a file that DATABASE_URL names cannot be read: let sslrootcert, sslcert and sslkey be paths of files that the program may read")
	}
	if err != nil || isCut(&config.ConnConfig.Config) {
		return nil, errUnreadable
	}
	if host := unverifiedHost(&config.ConnConfig.Config); host != "" && !o.AllowPlaintext {
		return nil, fmt.Errorf("DATABASE_URL reaches %s without TLS, or without proof that it is that server: set sslmode=verify-full, or ALLOW_PLAINTEXT=1 where the network is your own", host)
	}
	config.MaxConns = cmp.Or(o.MaxConns, defaultConns)
	config.MaxConnIdleTime = 5 * time.Minute
	config.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > pingAfter }
	config.ConnConfig.ConnectTimeout = cmp.Or(config.ConnConfig.ConnectTimeout, connectTimeout)
	config.ConnConfig.DialFunc = dial
	config.ConnConfig.Tracer = o.Tracer
	config.BeforeConnect, config.BeforeClose = known.beforeConnect(false), closeSocket
	guardSessions(config)
	own := o.sessionSettings()
	// The server reads both TimeZone and timezone, and the last of them counts.
	maps.DeleteFunc(config.ConnConfig.RuntimeParams, func(name, _ string) bool {
		_, ours := own[strings.ToLower(name)]
		return ours
	})
	maps.Copy(config.ConnConfig.RuntimeParams, own)
	return config, nil
}

// errUnreadable quotes nothing: what a separator in a password cuts off may be anywhere.
var errUnreadable = errors.New("DATABASE_URL cannot be read: write it as postgres://user:password@host:5432/database, " +
	"with %40 for @, %2F for / and so on in the password, or as key=value pairs with the values in single quotes")

// hosts are those that a connection tries, one after the other.
func hosts(c *pgconn.Config) []*pgconn.FallbackConfig {
	return append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}}, c.Fallbacks...)
}

// isCut reports whether a part of a password may be taken for a host or a database.
func isCut(c *pgconn.Config) bool {
	return strings.Contains(c.Database, "@") || slices.ContainsFunc(hosts(c), func(f *pgconn.FallbackConfig) bool {
		return strings.LastIndex(f.Host, "@") > 0 // a socket of Linux may begin with it
	})
}

// unverifiedHost is a host that the connection may reach over a network without TLS, or
// whose certificate and name TLS does not verify; "" if there is none. sslmode=prefer, the
// default, falls back to plaintext, require and verify-ca do not verify the name.
func unverifiedHost(c *pgconn.Config) string {
	for _, f := range hosts(c) {
		if (f.TLSConfig == nil || f.TLSConfig.InsecureSkipVerify) && !local(f.Host) {
			return f.Host
		}
	}
	return ""
}

// local reports whether bytes to host stay on this machine.
func local(host string) bool {
	return host == "" || host == "localhost" || strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") || net.ParseIP(host).IsLoopback()
}

// serverSettings also reads a setting that a session lacks, of those which it was opened with. They are a
// part of its first packet, which a pooler may answer itself and forward in part. The role is the one that
// pg_settings does not show.
const serverSettings = `
-- postgres.serverSettings
select current_setting('server_version_num')::int,
       coalesce((select min(name || ' is ' || current_setting(name))
                   from unnest(array['fsync', 'full_page_writes', 'synchronous_commit']) as s(name)
                  where current_setting(name) in ('off', 'local')), ''),
       current_setting('synchronous_standby_names') = '',
       coalesce((select min(w.name)
                   from jsonb_each_text($1) as w (name, value)
                   left join pg_settings s
                     on lower(s.name) = lower(w.name)
                  where case when w.name = 'role'
                             then current_setting('role') <> w.value
                             else s.source <> 'client' and s.setting <> w.value
                        end), '')`

func checkServer(ctx context.Context, q Querier, o Options, session map[string]string) error {
	var version int
	var alone bool
	var unsafe, missing string
	if err := q.QueryRow(ctx, serverSettings, session).Scan(&version, &unsafe, &alone, &missing); err != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if version < Oldest*10000 {
		return fmt.Errorf("the server is PostgreSQL %d: payonce needs %d or newer", version/10000, Oldest)
	}
	if unsafe != "" && !o.AllowUnsafeDurability {
		return fmt.Errorf("%s on the server: a crash or a failover could lose an acknowledged charge, so set it to on", unsafe)
	}
	if alone && o.ExpectReplication {
		return errors.New("synchronous_standby_names is empty on the server: a failover could lose an acknowledged charge, so name the standby that commits wait for, or unset EXPECT_REPLICATION")
	}
	if missing != "" {
		return fmt.Errorf("the session setting %s was not applied: a pooler dropped it, so let DATABASE_URL name the server itself", missing)
	}
	return nil
}

// Commit commits a batch as its merchant, in one transaction and one round trip. Batches
// that consist of declared statements may share the transaction (see Options.Writes).
// groupcommit.OutcomeOf says what became of it. A canceled context does not end it.
func (db *DB) Commit(ctx context.Context, b *pgx.Batch) error {
	return db.committer.CommitAs(ctx, db.merchant, b)
}

// Committer is what commits the batches of all merchants.
func (db *DB) Committer() *groupcommit.Committer { return db.committer }

// Pool is the pool itself, for what must own connections (Watermill's subscriber, LISTEN), and for
// the audit, each of whose statements has a snapshot of its own.
func (db *DB) Pool() *pgxpool.Pool { return db.pool }

// Close waits for connections in use and closes them all.
func (db *DB) Close() { db.pool.Close() }
