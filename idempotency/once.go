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

// FinalError is a failure that is the outcome of its key, such as a declined card. A function returns it, wrapped or
// not: its writes are undone, and the failure is stored. Each call under the key, the first one too, returns it bare.
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
// Errors beside fn's own are those of Receive. After any error but ErrUnknown, fn's writes of this call are undone.
// Stored results are read as T: give the operation of the key a version ("charge.v1").
func Once[T any](ctx context.Context, db Beginner, key Key, request Request, o Options, fn func(ctx context.Context, tx pgx.Tx) (T, error)) (value T, replayed bool, err error) {
	result, err := o.inTransaction(ctx, db, key, request, func(ctx context.Context, tx pgx.Tx) (Answer, error) {
		value, err := fn(ctx, tx)
		if final, ok := errors.AsType[*FinalError](err); ok {
			body, err := json.Marshal(final)
			return Answer{StatusCode: http.StatusUnprocessableEntity, Body: body}, err
		}
		if err != nil {
			return Answer{}, err
		}
		body, err := json.Marshal(value)
		if err == nil { // what no later call could read is not stored
			err = json.Unmarshal(body, new(T))
		}
		return Answer{StatusCode: http.StatusOK, Body: body}, err
	})
	if err != nil {
		return value, false, err
	}
	// The first call reads the result too: what JSON does not keep is lost.
	final, stored := &FinalError{}, any(&value)
	if result.StatusCode == http.StatusUnprocessableEntity {
		stored, err = final, final
	}
	if invalid := json.Unmarshal(result.Body, stored); invalid != nil {
		err = fmt.Errorf("read the stored result of %s: %w", key.Operation, invalid)
	}
	return value, result.Replayed, err
}

// Beginner begins a transaction: a pool, a connection, or the caller's own pgx.Tx, in which it is a savepoint.
type Beginner interface {
	groupcommit.Querier
	Begin(ctx context.Context) (pgx.Tx, error)
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

// inTransaction is Receive for work that writes through a transaction, in which the key is claimed first. The writes
// of an answer of 400 or above are undone, and the answer is stored.
func (o Options) inTransaction(ctx context.Context, db Beginner, key Key, request Request, work func(context.Context, pgx.Tx) (Answer, error)) (Result, error) {
	return o.replayOrTry(ctx, db, key, request, func(_, expires time.Time) (answer Answer, err error) {
		tx, err := db.Begin(ctx)
		if err != nil {
			return Answer{}, groupcommit.Classify(err)
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
			return Answer{}, groupcommit.Classify(err)
		}
		savepoint, err := tx.Begin(ctx) // no statement of the work that fails, nor its Rollback, ends the claim
		if err != nil {
			return Answer{}, groupcommit.Classify(err)
		}
		if answer, err = work(ctx, savepoint); err != nil {
			return Answer{}, workError{err}
		}
		ctx, cancel := toTheEnd(ctx)
		defer cancel()
		end := savepoint.Commit
		if answer.StatusCode >= http.StatusBadRequest {
			end = savepoint.Rollback
		}
		if err := end(ctx); err != nil && !tx.Conn().IsClosed() {
			return Answer{}, workError{fmt.Errorf("the work ended its transaction itself, or left rows open: %w", err)}
		}
		stored, err := tx.Exec(ctx, storeAnswer, key.Scope, key.Operation, key.Value, answer.StatusCode, answer.headers(), nonNull(answer.Body))
		if err != nil {
			return Answer{}, groupcommit.Classify(err)
		}
		if stored.RowsAffected() != 1 {
			return Answer{}, workError{errors.New("the work has removed its own key, or hidden it")}
		}
		return answer, groupcommit.Classify(tx.Commit(ctx))
	})
}

// toTheEnd bounds COMMIT and ROLLBACK, which go on if the caller's context ends.
func toTheEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
}
