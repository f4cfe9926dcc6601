package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// sessionSettings bound what one session can hold up: a stopped process loses its locks
// (idle_in_transaction_session_timeout), a vanished client its statement
// (client_connection_check_interval). No other time limit of a role or a database ends a
// session, or a transaction that these allow: transaction_timeout is of PostgreSQL 17.
//
// They also keep a plan from reading a whole table where an index serves: plans are kept, and one that
// was made while the table was small would read all of it later. A plan that uses what is off looks
// expensive enough to compile, hence jit. Each plan is made once: for short arrays the server would plan
// each execution, which takes longer than many a lookup.
func (o Options) sessionSettings() map[string]string {
	settings := map[string]string{
		"application_name":                    o.Application,
		"default_transaction_isolation":       "read committed",
		"timezone":                            "UTC",
		"lock_timeout":                        milliseconds(cmp.Or(o.LockTimeout, defaultLockTimeout)),
		"statement_timeout":                   milliseconds(cmp.Or(o.StatementTimeout, 10*time.Second)),
		"idle_in_transaction_session_timeout": "10000",
		"idle_session_timeout":                "0",
		"client_connection_check_interval":    "2000",
		"jit":                                 "off",
		"max_parallel_workers_per_gather":     "0",
		"plan_cache_mode":                     "force_generic_plan",
		"tcp_keepalives_idle":                 "10",
		"tcp_keepalives_interval":             "5",
		"tcp_keepalives_count":                "3",
	}
	for name := range strings.SplitSeq(wholeTables, ",") {
		settings[name] = "off"
	}
	maps.Copy(settings, o.Settings)
	if o.Role != "" {
		settings["role"] = string(o.Role) // with the first packet: no round trip
	}
	return settings
}

// wholeTables are what plans that read whole tables use.
const wholeTables = "enable_bitmapscan,enable_hashjoin,enable_incremental_sort,enable_mergejoin,enable_seqscan,enable_sort"

// ReadWholeTables is a statement that lets those after it in the same transaction read whole
// tables, with parallel workers, and join them by hash or merge, however small the planner takes them to be.
const ReadWholeTables = `
-- postgres.ReadWholeTables
select set_config('enable_nestloop', 'off', true),
       set_config('max_parallel_workers_per_gather', '2', true),
       set_config(name, 'on', true)
  from unnest('{` + wholeTables + `}'::text[]) as s(name)`

// JoinByHash is a statement that lets those after it in the same transaction join by hash what
// they have found by indexes.
const JoinByHash = `
-- postgres.JoinByHash
select set_config('enable_nestloop', 'off', true),
       set_config('enable_hashjoin', 'on', true),
       set_config('enable_sort', 'on', true)`

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// ErrReadOnly is returned, wrapped, for a server that refuses writes: a hot standby,
// or one with default_transaction_read_only. A pool keeps no session of it.
var ErrReadOnly = errors.New("the database server is read-only")

const readOnlyTransaction = "25006"

// errNoCancel is what a cancel request of pgx gets instead of a connection.
var errNoCancel = errors.New("a commit that waits for a standby is not canceled")

// errNotReplicated is the outcome of a commit that is durable on the primary alone.
var errNotReplicated = errors.New("the server stopped waiting for its standby: the commit may be lost in a failover")

// notReplicated marks a session, in pgconn's CustomData, of which a commit ended
// before its standby had confirmed it.
const notReplicated = "payonce: not replicated"

// guardSessions keeps the sessions of a pool true to what a commit promises on a
// server with synchronous replication, and on the right side of a failover:
//
//   - pgx sends no cancel request when a deadline ends. The server would end its wait
//     for the standby and show a commit that a failover loses. A statement that runs
//     too long ends by statement_timeout, and one whose client is gone by
//     client_connection_check_interval; neither ends that wait.
//   - A wait that an operator ends, such as by pg_cancel_backend, is an unknown
//     outcome, though the server reports success with a warning.
//   - A session that refuses a write because its server is read-only is closed, so
//     that the pool connects again, to the primary.
//
// Sources: SyncRepWaitForLSN in PostgreSQL's syncrep.c, asyncClose in pgconn, Destructor in pgxpool.
func guardSessions(config *pgxpool.Config) {
	config.ConnConfig.OnPgError = func(c *pgconn.PgConn, err *pgconn.PgError) bool {
		readOnly := c.ParameterStatus("in_hot_standby") == "on" || c.ParameterStatus("default_transaction_read_only") == "on"
		return err.SeverityUnlocalized != "FATAL" && (!readOnly || err.Code != readOnlyTransaction)
	}
	config.ConnConfig.OnNotice = func(c *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == "SyncRepWaitForLSN" {
			c.CustomData()[notReplicated] = true
		}
	}
}

// replicated returns an error if the standby has not confirmed the session's last commit,
// and closes the session.
func replicated(ctx context.Context, conn *pgxpool.Conn) error {
	if conn.Conn().PgConn().CustomData()[notReplicated] == nil {
		return nil
	}
	_ = conn.Conn().Close(ctx) // the pool opens another
	return errNotReplicated
}

const (
	// HalfSent is how long a session may stand in the middle of a transaction and
	// wait for the rest of what its program sends.
	HalfSent = 20 * time.Second
	// Held is how long a transaction of the api or the console may be open. A request lasts 20 s
	// at most.
	Held = time.Minute
)

// EndStuck ends sessions that hold up others, and returns how many there were: those of programs whose
// application name begins with prefix, which have sent half a batch for longer than halfSent, and those of the
// api's and the console's users whose transaction is older than held or that hold an advisory lock. What they had
// written is rolled back; for a program that goes on, the commit's outcome is unknown. The function is in
// migrations/service.sql, with the reasons, since the worker may end no other sessions.
func EndStuck(ctx context.Context, q Querier, prefix string, halfSent, held time.Duration) (ended int, err error) {
	if err := q.QueryRow(ctx, `-- postgres.EndStuck
select end_stuck_sessions($1, $2, $3)`, prefix, halfSent, held).Scan(&ended); err != nil {
		return 0, fmt.Errorf("end sessions that hold up others: %w", err)
	}
	return ended, nil
}
