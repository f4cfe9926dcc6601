package postgres

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

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
// Sources: SyncRepWaitForLSN in PostgreSQL's syncrep.c, asyncClose in pgconn.
func guardSessions(config *pgxpool.Config) {
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		refuseCancel(c)
		return nil
	}
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

// validateWritable refuses a new session of a read-only server: the next host of the
// URL is tried.
func validateWritable(ctx context.Context, c *pgconn.PgConn) error {
	answer := c.ExecParams(ctx, "show transaction_read_only", nil, nil, nil, nil).Read()
	if answer.Err != nil {
		return answer.Err
	}
	if string(answer.Rows[0][0]) != "off" {
		return ErrReadOnly
	}
	return nil
}

// refuseCancel lets one connection dial until it stands: a cancel request dials
// anew.
func refuseCancel(c *pgx.ConnConfig) {
	dial, stands := c.DialFunc, &atomic.Bool{}
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if stands.Load() {
			return nil, errNoCancel
		}
		return dial(ctx, network, address)
	}
	c.AfterConnect = func(context.Context, *pgconn.PgConn) error {
		stands.Store(true)
		return nil
	}
}

// closeCommit ends a batch that commits, and returns the error of the commit.
func closeCommit(ctx context.Context, conn *pgxpool.Conn, results pgx.BatchResults) error {
	if err := results.Close(); err != nil { // a deferred constraint refuses here, after the last Exec
		return err
	}
	return replicated(ctx, conn)
}

// replicated returns an error where the session's last commit was not, and closes
// the session.
func replicated(ctx context.Context, conn *pgxpool.Conn) error {
	if conn.Conn().PgConn().CustomData()[notReplicated] == nil {
		return nil
	}
	_ = conn.Conn().Close(ctx) // the pool makes another
	return errNotReplicated
}
