package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrUnknown is returned by Commit, wrapped, when nobody can tell whether the
// batch was committed: the connection was cut, the answer never came. The
// caller runs the same keyed batch again: a unique key then says which it was.
var ErrUnknown = errors.New("commit outcome unknown")

// ErrNotCommitted is returned by Commit, wrapped, when the batch certainly did
// not run, though nothing in it was refused: the server or a connection to it
// was out of reach before the first statement.
var ErrNotCommitted = errors.New("not committed")

// defaultCommitTimeout bounds one commit; statement_timeout ends its statements
// earlier on the server, so that an unknown outcome is rare. A batch that shares one may
// have been queued for as long before.
const defaultCommitTimeout = 15 * time.Second

// Commit sends the whole batch as one implicit transaction in one round trip:
// all of it is durable, or none of it is. Batches that consist of declared statements
// may share a commit (see Options.Writes). A batch holds no statement of transaction
// control: a commit in the midst of it would make half of it durable.
//
// The context's cancellation does not reach it: a client that hangs up must not
// turn a commit into an unknown one. Errors:
//
//   - nil: every statement ran and the transaction is durable;
//   - a *pgconn.PgError in the chain, without ErrUnknown: rolled back, certainly
//     (see Constraint for which guard refused);
//   - ErrNotCommitted: nothing ran;
//   - ErrUnknown: everything else.
//
// The sources of these rules are measurements: pgconn.SafeToRetry is not asked,
// because it answers true for batches that committed.
func (db *DB) Commit(ctx context.Context, b *pgx.Batch) error { return db.commit(ctx, "", b) }

// commit is Commit, and that of a tenant.
func (db *DB) commit(ctx context.Context, tenant string, b *pgx.Batch) error {
	if b.Len() == 0 {
		return errNothingToCommit
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), db.commitTimeout)
	defer cancel()
	u := &unit{ctx: ctx, tenant: tenant, batch: b}
	commit := db.commitAlone
	if db.committer != nil && db.committer.order.Shares(b) {
		commit = db.committer.commit
	}
	err := commit(u)
	if err == nil && db.committed != nil {
		db.committed(b)
	}
	return err
}

func (db *DB) commitAlone(u *unit) error {
	conn, err := db.pool.Acquire(u.ctx)
	if err != nil {
		return notAcquired(err)
	}
	defer conn.Release()
	return u.send(conn)
}

// send sends a unit as it is.
func (u *unit) send(conn *pgxpool.Conn) error {
	b := u.named()
	return outcome(closeCommit(u.ctx, conn, conn.SendBatch(u.ctx, b)))
}

// named is the batch with the name of its tenant.
func (u *unit) named() *pgx.Batch {
	if u.tenant == "" {
		return u.batch
	}
	named := &pgx.Batch{}
	named.Queue(setMerchant, u.tenant)
	named.QueuedQueries = append(named.QueuedQueries, u.batch.QueuedQueries...)
	return named
}

func notAcquired(err error) error {
	return fmt.Errorf("%w: acquire a connection: %w", ErrNotCommitted, err)
}

func outcome(err error) error {
	if err == nil {
		return nil
	}
	if _, unsent := errors.AsType[pgx.ErrPreprocessingBatch](err); unsent {
		if isRefusal(err) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrNotCommitted, err)
	}
	if isRefusal(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// isRefusal tells whether the server itself answered that the statement failed
// and the session goes on. FATAL, a shutdown (57P) and connection errors (08)
// say nothing certain about a commit under way.
func isRefusal(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	return pg.SeverityUnlocalized == "ERROR" && !strings.HasPrefix(pg.Code, "08") && !strings.HasPrefix(pg.Code, "57P")
}

// Constraint is the name of the constraint that refused the batch, "" when
// none did. It covers unique, check, foreign key, not null and exclusion.
func Constraint(err error) string {
	var pg *pgconn.PgError
	if errors.Is(err, ErrUnknown) || !errors.As(err, &pg) || !strings.HasPrefix(pg.Code, "23") {
		return ""
	}
	return pg.ConstraintName
}

// IsLockTimeout tells whether the batch was rolled back because a row or key
// was held by another transaction for longer than the pool's LockTimeout.
func IsLockTimeout(err error) bool { return code(err) == "55P03" }

// IsTransient tells whether the same batch, rolled back now, may pass when it is
// sent again unchanged: it lost a deadlock, a lock or a serialization race, or
// was never sent.
func IsTransient(err error) bool {
	switch code(err) {
	case "40001", "40P01", "55P03", "57014":
		return true
	}
	return errors.Is(err, ErrNotCommitted)
}

func code(err error) string {
	var pg *pgconn.PgError
	if errors.Is(err, ErrUnknown) || !errors.As(err, &pg) {
		return ""
	}
	return pg.Code
}
