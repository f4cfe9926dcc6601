package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

// Beginner begins a transaction: a *pgxpool.Pool, a *pgx.Conn, or the caller's own pgx.Tx,
// in which it is a savepoint.
type Beginner interface {
	groupcommit.Querier
	Begin(ctx context.Context) (pgx.Tx, error)
}

// The claim alone has this lock time-out: the statements of the work have the session's.
const (
	setLockTimeout = `
select set_config('idempotency.lock_timeout', current_setting('lock_timeout'), true),
       set_config('lock_timeout', '25ms', true)`

	restoreLockTimeout = `
select set_config('lock_timeout', current_setting('idempotency.lock_timeout'), true)`
)

const storeAnswer = `
update idempotency_keys
   set status_code = $4,
       headers     = $5,
       body        = $6
 where scope = $1
   and operation = $2
   and key = $3`

// endTimeout bounds COMMIT and ROLLBACK, which go on if the caller's context ends. The server rolls
// back a lost connection without either.
const endTimeout = 15 * time.Second

// inTransaction is Receive for work that writes through a transaction, in which the key is
// claimed first. The writes of an answer of 400 or above are undone, and the answer is stored.
func (o Options) inTransaction(ctx context.Context, db Beginner, key Key, request Request, work func(context.Context, pgx.Tx) (Answer, error)) (Result, error) {
	return o.do(ctx, db, key, request, func(_, expires time.Time, _ bool) (Answer, error) {
		tx, err := db.Begin(ctx)
		if err != nil {
			return Answer{}, notCommitted(err)
		}
		defer func() { // also after a panic of the work
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
			defer cancel()
			_ = tx.Rollback(ctx) // it has ended, or its connection is lost
		}()
		b := &pgx.Batch{}
		b.Queue(setLockTimeout)
		// Without an answer, as a tombstone is. No other transaction sees it.
		b.Queue(insertAnswer, key.Scope, key.Operation, key.Value, append([]byte{}, request.Fingerprint...), request.Canonical, http.StatusOK, "{}", nil, expires)
		b.Queue(restoreLockTimeout)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return Answer{}, notCommitted(err)
		}
		answer, err := inSavepoint(ctx, tx, work)
		if err != nil {
			return Answer{}, err
		}
		return answer, commit(ctx, tx, key, answer)
	})
}

// inSavepoint does the work in a savepoint, so that neither a failed statement of it nor
// its Commit or Rollback ends the claim.
func inSavepoint(ctx context.Context, tx pgx.Tx, work func(context.Context, pgx.Tx) (Answer, error)) (Answer, error) {
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return Answer{}, notCommitted(err)
	}
	answer, err := work(ctx, savepoint)
	if err != nil {
		return Answer{}, workError{err}
	}
	end := savepoint.Commit
	if answer.StatusCode >= http.StatusBadRequest {
		end = savepoint.Rollback
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if err := end(ctx); err != nil && tx.Conn().IsClosed() {
		return Answer{}, notCommitted(err)
	} else if err != nil {
		return Answer{}, workError{fmt.Errorf("the work ended its transaction itself, or left rows open: %w", err)}
	}
	return answer, nil
}

// commit stores the answer of the claimed key and commits. It goes on if ctx ends.
func commit(ctx context.Context, tx pgx.Tx, key Key, answer Answer) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	stored, err := tx.Exec(ctx, storeAnswer, key.Scope, key.Operation, key.Value, answer.StatusCode, answer.headers(), append([]byte{}, answer.Body...))
	if err == nil && stored.RowsAffected() != 1 {
		err = workError{errors.New("the work ended its transaction itself")}
	}
	if err != nil {
		return notCommitted(err)
	}
	return groupcommit.Classify(tx.Commit(ctx))
}

// notCommitted is the error of a statement before COMMIT: if the server did not refuse it, at
// least nothing is durable.
func notCommitted(err error) error {
	if groupcommit.OutcomeOf(groupcommit.Classify(err)) != groupcommit.Unknown {
		return err
	}
	return fmt.Errorf("%w: %w", groupcommit.ErrNotCommitted, err)
}
