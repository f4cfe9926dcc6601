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

	"github.com/payonce/payonce/groupcommit"
)

// ErrUnknown is in the chain of a commit's error whose Outcome is Unknown.
var ErrUnknown = errors.New("commit outcome unknown")

// ErrNotCommitted is in the chain of a commit's error whose Outcome is NotSent.
var ErrNotCommitted = errors.New("not committed")

// errNothingToCommit guards against a caller that forgot to queue its writes.
var errNothingToCommit = errors.New("the batch is empty: nothing to commit")

// Outcome says what became of a commit, and with it what the caller may do next.
type Outcome int

// The outcomes of a commit.
const (
	// Committed: every statement ran and the transaction is durable.
	Committed Outcome = iota
	// Refused: rolled back, and the same batch would be refused again. Constraint says by
	// which guard. So is every error that is none of a commit.
	Refused
	// Locked: rolled back, since another transaction held a row or key for longer than the
	// lock time-out. The same batch may pass later.
	Locked
	// Contended: rolled back, since it lost a deadlock or a serialization race or ran for
	// longer than the statement time-out. The same batch may pass later.
	Contended
	// NotSent: nothing ran, though nothing was refused: the server, or a connection to it,
	// was out of reach before the first statement. The same batch may pass later.
	NotSent
	// Unknown: the connection was cut, or the answer never came. The caller commits the same
	// keyed batch again: a unique key then says which it was.
	Unknown
)

// OutcomeOf returns the outcome of a commit that returned err, also where err was wrapped.
func OutcomeOf(err error) Outcome {
	var refusal *pgconn.PgError
	switch {
	case err == nil:
		return Committed
	case errors.Is(err, ErrUnknown):
		return Unknown
	case errors.Is(err, ErrNotCommitted):
		return NotSent
	case !errors.As(err, &refusal):
		return Refused
	}
	switch refusal.Code {
	case "55P03":
		return Locked
	case "40001", "40P01", "57014":
		return Contended
	}
	return Refused
}

// MayPass tells whether the same batch, of which nothing is durable now, may pass when it
// is sent again unchanged.
func (o Outcome) MayPass() bool { return o == Locked || o == Contended || o == NotSent }

// Constraint is the name of the constraint that refused the batch, "" when
// none did. It covers unique, check, foreign key, not null and exclusion.
func Constraint(err error) string {
	var refusal *pgconn.PgError
	if OutcomeOf(err) != Refused || !errors.As(err, &refusal) || !strings.HasPrefix(refusal.Code, "23") {
		return ""
	}
	return refusal.ConstraintName
}

// marked is the error of a commit with the mark of its outcome. pgconn.SafeToRetry is not
// asked: it returns true for batches that committed.
func marked(err error) error {
	if err == nil || isRefusal(err) {
		return err
	}
	if _, unsent := errors.AsType[pgx.ErrPreprocessingBatch](err); unsent {
		return fmt.Errorf("%w: %w", ErrNotCommitted, err)
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// isRefusal tells whether the server itself answered that the statement failed
// and the session goes on. FATAL, a shutdown (57P) and connection errors (08)
// say nothing certain about a commit in flight.
func isRefusal(err error) bool {
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) {
		return false
	}
	return refusal.SeverityUnlocalized == "ERROR" && !strings.HasPrefix(refusal.Code, "08") && !strings.HasPrefix(refusal.Code, "57P")
}

// defaultCommitTimeout bounds one commit; statement_timeout ends its statements earlier on
// the server, so that an unknown outcome is rare. A group commit may have been queued for
// as long before.
const defaultCommitTimeout = 15 * time.Second

// Commit sends the whole batch as one implicit transaction in one round trip:
// all of it is durable, or none of it is. OutcomeOf says which. Batches that consist of
// declared statements may share the transaction (see Options.Writes). A batch holds no
// statement of transaction control: a commit inside it would make half of it durable.
//
// The context's cancellation does not reach it: a client that hangs up must not
// turn a commit into an unknown one.
func (db *DB) Commit(ctx context.Context, b *pgx.Batch) error {
	if b.Len() == 0 {
		return errNothingToCommit
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), db.commitTimeout)
	defer cancel()
	u := &unit{groupcommit.Unit{Tenant: db.merchant, Batch: b}, ctx}
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

// commitAlone commits a unit in its own transaction.
func (db *DB) commitAlone(u *unit) error {
	conn, err := db.pool.Acquire(u.ctx)
	if err != nil {
		return notAcquired(err)
	}
	defer conn.Release()
	b := named(u.Tenant, u.Batch)
	return closeCommit(u.ctx, conn, conn.SendBatch(u.ctx, b))
}

func notAcquired(err error) error {
	return fmt.Errorf("%w: acquire a connection: %w", ErrNotCommitted, err)
}

// closeCommit ends a batch that commits, and returns the error of the commit.
func closeCommit(ctx context.Context, conn *pgxpool.Conn, results pgx.BatchResults) error {
	err := results.Close() // a deferred constraint refuses here, after the last Exec
	if err == nil {
		err = replicated(ctx, conn)
	}
	return marked(err)
}
