package idempotency

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
)

// FinalError is a failure that is the outcome of its key: such as a card that was
// declined. A function returns it, wrapped or not, and its writes are undone, but the
// failure is stored. Each call under the key returns it, the first one too, without what
// wrapped it.
type FinalError struct {
	Code    string `json:"code,omitempty"`    // for programs
	Message string `json:"message,omitempty"` // for people
}

// Error is the message, or the code if there is none.
func (e *FinalError) Error() string { return cmp.Or(e.Message, e.Code) }

// Once calls fn once under a key and returns its result. Each later call under the key
// returns the stored result, with replayed true, and does not call fn. fn's writes
// through tx, the result as JSON, and the key are one transaction: when Once returns
// without an error, all are durable; in the caller's own transaction they are when that
// commits.
//
// The key is claimed first, so that of concurrent calls one calls fn and the others wait
// (Options.Wait): a call that the caller itself makes over another connection, while its own
// transaction holds the key, waits for its own end, and is ErrInFlight. fn is called again only if its
// transaction is known to be rolled back. It must not end tx, and should make no network call,
// since a transaction is open.
//
// An error of fn, and a panic, roll everything back and leave the key free. FinalError is
// stored. The operation of the key should hold a version ("charge.v1"): stored results are
// read as T.
//
// Errors beside fn's own are those of Receive. After any error but ErrUnknown, fn's writes of this
// call are undone.
//
// If we die here: before COMMIT the server rolls back and the key is free; after it the
// next call replays. Test: TestPromises.
func Once[T any](ctx context.Context, db Beginner, key Key, request Request, o Options, fn func(ctx context.Context, tx pgx.Tx) (T, error)) (value T, replayed bool, err error) {
	result, err := o.inTransaction(ctx, db, key, request, func(ctx context.Context, tx pgx.Tx) (Answer, error) {
		var result any
		result, err := fn(ctx, tx)
		answer := Answer{StatusCode: http.StatusOK}
		if final, ok := errors.AsType[*FinalError](err); ok {
			answer.StatusCode, result, err = http.StatusUnprocessableEntity, final, nil
		}
		if err != nil {
			return Answer{}, err
		}
		if answer.Body, err = json.Marshal(result); err != nil {
			return Answer{}, fmt.Errorf("encode a result of %s: %w", key.Operation, err)
		}
		_, err = resultOf[T](key, answer) // what no later call could read is not stored
		if _, ok := errors.AsType[*FinalError](err); ok {
			err = nil
		}
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
