package groupcommit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Errors that the error of a commit wraps: ask by errors.Is.
var (
	// ErrUnknown: the Outcome is Unknown. A Batcher returns it too.
	ErrUnknown = errors.New("the outcome is unknown")
	// ErrNotCommitted: nothing was committed, and the server did not say why. The error of a deadlock, a
	// serialization failure or a statement time-out wraps the server's error instead.
	ErrNotCommitted = errors.New("not committed")
	// ErrNotSent, always with ErrNotCommitted: the batch waited for other commits until its time was over. The
	// same batch may be committed again.
	ErrNotSent = errors.New("not sent")
)

// Outcome says what became of a commit, and with it what the caller may do next.
type Outcome int

// The outcomes of a commit.
const (
	// Committed: every statement ran and the transaction is durable.
	Committed Outcome = iota
	// Refused: rolled back by a guard, which Constraint names, by a fault of the batch, or since the server is
	// full or read-only. The same batch would be refused again as long as that is so.
	// OutcomeOf is for errors of commits: any other error is Refused too.
	Refused
	// Locked: rolled back, since another transaction held a row or key for longer than the lock time-out.
	// The same batch may pass later.
	Locked
	// NotCommitted: nothing is durable, though nothing was refused: the server, or a connection to it, was
	// out of reach, or the transaction lost a deadlock or a serialization race or ran for longer than the
	// statement time-out. The same batch may pass later.
	NotCommitted
	// Unknown: the connection was cut, or the answer never came, so the batch may be durable or not. The
	// caller commits the same batch again, and a unique key in it then says which it was; or reads what
	// the batch would have written.
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
		return NotCommitted
	case !errors.As(err, &refusal):
		return Refused
	case refusal.Code == "55P03":
		return Locked
	case refusal.Code == "40001", refusal.Code == "40P01", refusal.Code == "57014":
		return NotCommitted
	}
	return Refused
}

// Retryable reports whether nothing of the batch is durable, and the same batch may pass later.
func (o Outcome) Retryable() bool { return o == Locked || o == NotCommitted }

// Constraint is the name of the constraint that refused the batch: unique, check, foreign key, not null or
// exclusion; "" if none did.
func Constraint(err error) string {
	var refusal *pgconn.PgError
	if OutcomeOf(err) != Refused || !errors.As(err, &refusal) || !strings.HasPrefix(refusal.Code, "23") {
		return ""
	}
	return refusal.ConstraintName
}

// Classify marks the error of a commit (of BatchResults.Close, or of Tx.Commit) with ErrUnknown or
// ErrNotCommitted where the server did not answer that it refused, so that OutcomeOf knows it. FATAL, a
// shutdown (57P) and connection errors (08) say nothing certain about a commit in flight.
// pgconn.SafeToRetry is not asked: it returns true for batches that committed.
func Classify(err error) error {
	refusal, answered := errors.AsType[*pgconn.PgError](err)
	_, unsent := errors.AsType[pgx.ErrPreprocessingBatch](err)
	switch {
	case err == nil:
		return nil
	case answered && refusal.SeverityUnlocalized == "ERROR" && !strings.HasPrefix(refusal.Code, "08") && !strings.HasPrefix(refusal.Code, "57P"):
		return err // the session goes on
	case unsent:
		return fmt.Errorf("%w: %w", ErrNotCommitted, err)
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}
