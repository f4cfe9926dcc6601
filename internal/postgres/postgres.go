// Package postgres holds what every room needs of PostgreSQL: a pool with
// safe session settings, the one way to commit, and the reading of its errors.
//
// It promises that a program never runs on a server that may lose a commit
// (fsync, full_page_writes or synchronous_commit off), nor sends its data in
// plain text over a network, unless it was told so. It owns no table.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
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
	// MaxConns bounds the pool; 20 unless set.
	MaxConns int32
	// LockTimeout ends a statement that waits longer for one lock (55P03);
	// 5 s unless set, none where negative.
	LockTimeout time.Duration
	// StatementTimeout ends a statement that runs longer (57014); 10 s unless set.
	StatementTimeout time.Duration
	// Writes are the statements that may share a commit with those of other batches that
	// are committed at the same moment; none is shared where it is nil.
	Writes *groupcommit.Order
	// SharedCommits is how many commits that may be shared are under way at a time; 2 unless
	// set. With one the server would have nothing to do while the next one is gathered.
	SharedCommits int
	// Settings are further settings of the sessions.
	Settings map[string]string
	// CommitTimeout bounds one commit; 15 s unless set. The outcome of a commit that
	// takes longer is unknown.
	CommitTimeout time.Duration
	// AllowReadOnly permits a server that refuses writes, such as a hot standby. It is
	// for programs that only read.
	AllowReadOnly bool
	// Committed, where set, is called with each batch that was committed. It must return
	// at once.
	Committed func(*pgx.Batch)
	// Tracer is told of the statements; nobody is where it is nil.
	Tracer pgx.QueryTracer
	// AllowPlaintext permits a database over a network without TLS.
	AllowPlaintext bool
	// AllowUnsafeDurability permits a server that may lose commits. Tests only.
	AllowUnsafeDurability bool
}

const defaultConns = 20

// sharedLockTimeout bounds the wait for a lock in a shared transaction. It is below
// PostgreSQL's deadlock_timeout of a second.
const sharedLockTimeout = 200 * time.Millisecond

// DB is a pool of connections and the one way to commit through them.
type DB struct {
	pool              *pgxpool.Pool
	tracer            pgx.QueryTracer
	committer         *committer // nil where each commits for itself
	sharedLockTimeout string     // in milliseconds
	commitTimeout     time.Duration
	committed         func(*pgx.Batch)
}

// Open connects and checks the server: its version, its durability settings,
// the privacy of the connection, and that its sessions have the settings which
// they were opened with. Each refusal is a sentence that says what to change.
func Open(ctx context.Context, url string, o Options) (*DB, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL cannot be read: %w", err)
	}
	if host := plaintextHost(config.ConnConfig); host != "" && !o.AllowPlaintext {
		return nil, fmt.Errorf("DATABASE_URL reaches %s without TLS: add sslmode=verify-full, or set ALLOW_PLAINTEXT=1 where the network is your own", host)
	}
	config.MaxConns = defaultConns
	if o.MaxConns > 0 {
		config.MaxConns = o.MaxConns
	}
	config.MaxConnIdleTime = 5 * time.Minute
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.ConnConfig.Tracer = o.Tracer
	if !o.AllowReadOnly {
		config.ConnConfig.ValidateConnect = validateWritable
	}
	guardSessions(config)
	own := sessionSettings(o)
	maps.Copy(own, o.Settings)
	if o.Role != "" {
		own["role"] = string(o.Role) // with the first packet: no round trip
	}
	// The server hears both TimeZone and timezone, and the last of them counts.
	maps.DeleteFunc(config.ConnConfig.RuntimeParams, func(name, _ string) bool {
		_, ours := own[strings.ToLower(name)]
		return ours
	})
	maps.Copy(config.ConnConfig.RuntimeParams, own)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	err = check(ctx, pool, o)
	if err == nil {
		err = heard(ctx, pool, config.ConnConfig.RuntimeParams)
	}
	if err != nil {
		pool.Close()
		if refusal := o.Role.refusal(err, config.ConnConfig.User); refusal != nil {
			return nil, cmp.Or(o.Role.without(ctx, config.ConnConfig, o), refusal)
		}
		return nil, err
	}
	db := &DB{
		pool: pool, tracer: o.Tracer, sharedLockTimeout: milliseconds(sharedLockTimeout),
		commitTimeout: cmp.Or(o.CommitTimeout, defaultCommitTimeout), committed: o.Committed,
	}
	if lock := o.lockTimeout(); lock > 0 && lock < sharedLockTimeout {
		db.sharedLockTimeout = milliseconds(lock)
	}
	if o.Writes != nil {
		db.committer = newCommitter(db, o.Writes, cmp.Or(o.SharedCommits, 2))
	}
	return db, nil
}

// plaintextHost is a host that the connection may reach over a network without
// TLS, "" if there is none. sslmode=prefer, the default, falls back to plaintext.
func plaintextHost(c *pgx.ConnConfig) string {
	if c.TLSConfig == nil && !local(c.Host) {
		return c.Host
	}
	for _, f := range c.Fallbacks {
		if f.TLSConfig == nil && !local(f.Host) {
			return f.Host
		}
	}
	return ""
}

// local tells whether bytes to host stay on this machine.
func local(host string) bool {
	if host == "" || host == "localhost" || strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// sessionSettings bound what one session can hold up: a stopped process loses
// its locks (idle_in_transaction_session_timeout), a vanished client its
// statement (client_connection_check_interval).
//
// They also make a lookup a lookup. Plans are kept, and one that was made while a
// table was small reads all of it for every row later, until the table is analyzed
// again. So whole tables are read where no index will do, and nothing is compiled
// because that looks dear. Who wants to read whole tables says so.
//
// And they make it once. Where an array holds less than the planner guesses it plans
// for each execution anew, which takes longer than many a lookup.
func sessionSettings(o Options) map[string]string {
	statement := o.StatementTimeout
	if statement == 0 {
		statement = 10 * time.Second
	}
	return map[string]string{
		"application_name":                    o.Application,
		"default_transaction_isolation":       "read committed",
		"timezone":                            "UTC",
		"lock_timeout":                        milliseconds(o.lockTimeout()),
		"statement_timeout":                   milliseconds(statement),
		"idle_in_transaction_session_timeout": "10000",
		"client_connection_check_interval":    "2000",
		"enable_seqscan":                      "off",
		"jit":                                 "off",
		"plan_cache_mode":                     "force_generic_plan",
		"tcp_keepalives_idle":                 "10",
		"tcp_keepalives_interval":             "5",
		"tcp_keepalives_count":                "3",
	}
}

// lockTimeout is 0 for none.
func (o Options) lockTimeout() time.Duration {
	if o.LockTimeout == 0 {
		return 5 * time.Second
	}
	return max(o.LockTimeout, 0)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

const serverSettings = `
select current_setting('server_version_num')::int,
       current_setting('fsync') = 'on',
       current_setting('full_page_writes') = 'on',
       current_setting('synchronous_commit') <> 'off'`

func check(ctx context.Context, q Querier, o Options) error {
	var version int
	var fsync, fullPageWrites, synchronousCommit bool
	err := q.QueryRow(ctx, serverSettings).Scan(&version, &fsync, &fullPageWrites, &synchronousCommit)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	if version < Oldest*10000 {
		return fmt.Errorf("the server is PostgreSQL %d: payonce needs %d or newer", version/10000, Oldest)
	}
	if o.AllowUnsafeDurability {
		return nil
	}
	if o.Settings["synchronous_commit"] == "off" {
		synchronousCommit = true // of this pool alone, and because its caller wants it so
	}
	for _, setting := range []struct {
		name string
		safe bool
	}{{"fsync", fsync}, {"full_page_writes", fullPageWrites}, {"synchronous_commit", synchronousCommit}} {
		if !setting.safe {
			return fmt.Errorf("%s is off on the server: a crash could lose an acknowledged charge, so set it to on", setting.name)
		}
	}
	return nil
}

// Pool is the pool itself, for what must own connections (Watermill's
// subscriber, LISTEN).
func (db *DB) Pool() *pgxpool.Pool { return db.pool }

// Close waits for connections in use and closes them all.
func (db *DB) Close() { db.pool.Close() }

// errNothingToCommit guards against a caller that forgot to queue its writes.
var errNothingToCommit = errors.New("the batch is empty: nothing to commit")
