package idempotency

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

// FinalError is a failure that is the outcome of its key: such as a card that was declined. A function returns it,
// wrapped or not, and its writes are undone, but the failure is stored. Each call under the key returns it, the first
// one too, without what wrapped it.
type FinalError struct {
	Code    string `json:"code,omitempty"`    // for programs
	Message string `json:"message,omitempty"` // for people
}

// Error is the message, or the code if there is none.
func (e *FinalError) Error() string { return cmp.Or(e.Message, e.Code) }

// Once calls fn once under a key and returns its result. Each later call under the key returns the stored result,
// with replayed true, and does not call fn. fn's writes through tx, the result as JSON, and the key are one
// transaction: when Once returns without an error, all are durable; in the caller's own transaction they are when
// that commits.
//
// The key is claimed first, so that of concurrent calls one calls fn and the others wait (Options.Wait): a call
// within fn over another connection is ErrInFlight. fn is called again only if its transaction is known to be rolled
// back. It must not end tx, and should make no network call, since a transaction is open.
//
// An error of fn, and a panic, roll everything back and leave the key free. FinalError is stored. Errors beside fn's
// own are those of Receive. After any error but ErrUnknown, fn's writes of this call are undone. Stored results are
// read as T: give the operation of the key a version ("charge.v1").
//
// If we die here: before COMMIT the server rolls back and the key is free; after it the next call replays.
// Test: TestPromises.
func Once[T any](ctx context.Context, db Beginner, key Key, request Request, o Options, fn func(ctx context.Context, tx pgx.Tx) (T, error)) (value T, replayed bool, err error) {
	result, err := o.inTransaction(ctx, db, key, request, func(ctx context.Context, tx pgx.Tx) (Answer, error) {
		value, err := fn(ctx, tx)
		if final, ok := errors.AsType[*FinalError](err); ok {
			body, _ := json.Marshal(final) // texts have no error
			return Answer{StatusCode: http.StatusUnprocessableEntity, Body: body}, nil
		}
		if err != nil {
			return Answer{}, err
		}
		body, err := json.Marshal(value)
		if err != nil {
			return Answer{}, fmt.Errorf("encode a result of %s: %w", key.Operation, err)
		}
		answer := Answer{StatusCode: http.StatusOK, Body: body}
		_, err = resultOf[T](key, answer) // what no later call could read is not stored
		return answer, err
	})
	if err != nil {
		return value, false, err
	}
	value, err = resultOf[T](key, result.Answer) // the first time too: what JSON does not keep is lost
	return value, result.Replayed, err
}

// resultOf reads a stored result, which may be a FinalError.
func resultOf[T any](key Key, a Answer) (value T, err error) {
	if a.StatusCode == http.StatusUnprocessableEntity {
		final := &FinalError{}
		if err = json.Unmarshal(a.Body, final); err == nil {
			return value, final
		}
	} else {
		err = json.Unmarshal(a.Body, &value)
	}
	if err != nil {
		return value, fmt.Errorf("read the stored result of %s: %w", key.Operation, err)
	}
	return value, nil
}

// Beginner begins a transaction: a pool, a connection, or the caller's own pgx.Tx, in which it is a savepoint.
type Beginner interface {
	groupcommit.Querier
	Begin(ctx context.Context) (pgx.Tx, error)
}

// inTransaction is Receive for work that writes through a transaction, in which the key is claimed first. The writes
// of an answer of 400 or above are undone, and the answer is stored.
func (o Options) inTransaction(ctx context.Context, db Beginner, key Key, request Request, work func(context.Context, pgx.Tx) (Answer, error)) (Result, error) {
	return o.replayOrTry(ctx, db, key, request, func(_, expires time.Time, _ bool) (answer Answer, err error) {
		tx, err := db.Begin(ctx)
		if err != nil {
			return Answer{}, notCommitted(err)
		}
		defer func() { // also after a panic of the work
			ctx, cancel := toTheEnd(ctx)
			defer cancel()
			_ = tx.Rollback(ctx) // it has ended, or its connection is lost
		}()
		b := &pgx.Batch{}
		b.Queue(setLockTimeout)
		// Without an answer, as a tombstone is. No other transaction sees it.
		b.Queue(insertAnswer, key.Scope, key.Operation, key.Value, nonNull(request.Fingerprint), request.Canonical, http.StatusOK, "{}", nil, expires)
		b.Queue(restoreLockTimeout)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return Answer{}, notCommitted(err)
		}
		savepoint, err := tx.Begin(ctx) // no statement of the work that fails, nor its Rollback, ends the claim
		if err != nil {
			return Answer{}, notCommitted(err)
		}
		if answer, err = work(ctx, savepoint); err != nil {
			return Answer{}, workError{err}
		}
		return answer, commit(ctx, tx, savepoint, key, answer)
	})
}

// toTheEnd bounds COMMIT and ROLLBACK, which go on if the caller's context ends.
func toTheEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
}

// The claim alone has this lock time-out: the statements of the work have the session's.
const (
	setLockTimeout = `
-- idempotency.setLockTimeout
select set_config('idempotency.lock_timeout', current_setting('lock_timeout'), true),
       set_config('lock_timeout', '25ms', true)`

	restoreLockTimeout = `
-- idempotency.restoreLockTimeout
select set_config('lock_timeout', current_setting('idempotency.lock_timeout'), true)`
)

const storeAnswer = `
-- idempotency.storeAnswer
update idempotency_keys
   set status_code = $4,
       headers     = $5,
       body        = $6
 where scope = $1
   and operation = $2
   and key = $3`

// commit ends the savepoint of the work, stores the answer of the claimed key and commits.
func commit(ctx context.Context, tx, savepoint pgx.Tx, key Key, answer Answer) error {
	ctx, cancel := toTheEnd(ctx)
	defer cancel()
	end := savepoint.Commit
	if answer.StatusCode >= http.StatusBadRequest {
		end = savepoint.Rollback
	}
	if err := end(ctx); err != nil && !tx.Conn().IsClosed() {
		return workError{fmt.Errorf("the work ended its transaction itself, or left rows open: %w", err)}
	} else if err != nil {
		return notCommitted(err)
	}
	stored, err := tx.Exec(ctx, storeAnswer, key.Scope, key.Operation, key.Value, answer.StatusCode, answer.headers(), nonNull(answer.Body))
	if err != nil {
		return notCommitted(err)
	}
	if stored.RowsAffected() != 1 {
		return workError{errors.New("the work has removed its own key, or hidden it")}
	}
	return groupcommit.Classify(tx.Commit(ctx))
}

// notCommitted is the error of a statement before COMMIT: if the server did not refuse it, at least nothing is
// durable.
func notCommitted(err error) error {
	if groupcommit.OutcomeOf(groupcommit.Classify(err)) != groupcommit.Unknown {
		return err
	}
	return fmt.Errorf("%w: %w", groupcommit.ErrNotCommitted, err)
}
