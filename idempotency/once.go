package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// ErrReadsBatch is returned, wrapped, for a work that queues a statement with a
// callback, such as QueryRow's: it would run after the result is stored. Nothing is
// committed, and the key is free.
var ErrReadsBatch = errors.New("the work reads from its own batch, which runs after its result is stored")

// Once does a piece of work under a key and returns its result. Each later call under the
// key returns the same result and does nothing. The writes, the result and the key are one
// commit. Nothing is guaranteed for what the work does elsewhere: a call to another system
// belongs behind an outbox, or needs a key of its own there.
//
// The work queues its writes on b. It may be called more than once, and one call is
// committed: see the type Work. After an error nothing is, and the key is free. A failure
// that is final is a result, so it belongs in T. T is stored as JSON in the same batch, so
// the work makes ids in Go: "insert … returning id" is ErrReadsBatch. Work whose result
// must not be stored returns an empty struct.
//
// Errors are those of Receive and of Validate, and ErrReadsBatch. ErrExpired: the work was
// done, and its result is no longer kept. The operation should hold a version
// ("charge.v1"): stored results are read as T.
func Once[T any](ctx context.Context, r Receiver, key Key, request Request, work func(ctx context.Context, b *pgx.Batch) (T, error)) (value T, duplicate bool, err error) {
	if err := validateAll(key, request); err != nil {
		return value, false, err
	}
	outcome, err := r.Receive(ctx, key, request, func(ctx context.Context, b *pgx.Batch, _ time.Time) (Answer, error) {
		out, err := work(ctx, b)
		if err != nil {
			return Answer{}, err
		}
		if slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool { return q.Fn != nil }) {
			return Answer{}, fmt.Errorf("do the work of %s: %w", key.Operation, ErrReadsBatch)
		}
		body, err := json.Marshal(out)
		if err != nil {
			return Answer{}, fmt.Errorf("encode a result of %s: %w", key.Operation, err)
		}
		return Answer{StatusCode: http.StatusOK, ContentType: "application/json", Body: body}, nil
	})
	if err != nil {
		return value, false, err
	}
	if err := json.Unmarshal(outcome.Body, &value); err != nil { // the first time too: what JSON does not keep is lost
		return value, outcome.Replayed, fmt.Errorf("read the stored result of %s: %w", key.Operation, err)
	}
	return value, outcome.Replayed, nil
}

func validateAll(key Key, request Request) error {
	for _, k := range key.with(request.Also) {
		if err := Validate(k.Value); err != nil {
			return fmt.Errorf("a key of %s: %w", key.Operation, err)
		}
	}
	return nil
}

// ByContent returns the default key of work on an input, a hash of the operation and the
// input, and the request. Set Key.Value where the input has a better one, such as a
// NaturalKey: another input under that key is ErrReused.
//
// The input is read as encoding/json writes it. What that leaves out is not compared, such
// as fields that are not exported. Text that is not UTF-8 is ErrNotJSON, since many inputs
// would be written alike; a struct without any exported field is ErrUnstable.
func ByContent(scope, operation string, input any) (Key, Request, error) {
	canonical, err := canonicalOf(input)
	if err != nil {
		return Key{}, Request{}, fmt.Errorf("encode an input of %s: %w", operation, err)
	}
	value, _, err := Content(operation, canonical)
	return Key{Scope: scope, Operation: operation, Value: value},
		Request{Fingerprint: Fingerprint([]byte("once.v1"), []byte(operation), canonical), Canonical: canonical}, err
}

// Result is the result of one input of DoAll.
type Result[T any] struct {
	Value     T
	Duplicate bool // the work had been done before
	Err       error
}

// concurrency is how many inputs DoAll works on at once.
const concurrency = 8

// errNoReturn is the error of a work that ended its goroutine.
var errNoReturn = errors.New("the work did not return")

// DoAll does each of many inputs once, and returns their results in the same order.
// identify returns key and request of an input, such as ByContent does. One read finds the
// keys that are known. Each of the other inputs is a commit of its own, so one that fails,
// or panics, fails alone. The same input twice in one call is done once.
//
// If we die here: some inputs are done and the others are not. The same call does
// the rest. Test: TestDoAll/inputs_that_a_call_left_undone_are_done_by_the_next.
func DoAll[In, T any](ctx context.Context, r Receiver, ins []In, identify func(In) (Key, Request, error), work func(ctx context.Context, b *pgx.Batch, in In) (T, error)) []Result[T] {
	results, keys, requests := make([]Result[T], len(ins)), make([]Key, len(ins)), make([]Request, len(ins))
	var identified []Key
	for i, in := range ins {
		recovered(&results[i].Err, func() (err error) {
			if keys[i], requests[i], err = identify(in); err == nil {
				err = validateAll(keys[i], requests[i])
			}
			return err
		})
		if results[i].Err == nil {
			identified = append(identified, keys[i])
		}
	}
	states, err := readKeys(ctx, r.DB, selectKeys, identified...)
	var group errgroup.Group
	group.SetLimit(concurrency)
	for i, in := range ins {
		result := &results[i]
		if result.Err != nil {
			continue
		}
		if err != nil {
			result.Err = unavailable(err)
			continue
		}
		requests[i].Known, states = states[0], states[1:]
		result.Err = errNoReturn // until the work returns
		group.Go(func() error {
			recovered(&result.Err, func() (err error) {
				result.Value, result.Duplicate, err = Once(ctx, r, keys[i], requests[i], func(ctx context.Context, b *pgx.Batch) (T, error) {
					return work(ctx, b, in)
				})
				return err
			})
			return nil
		})
	}
	_ = group.Wait() // each error is in its result
	return results
}

// recovered notes the error of a function, also if it panics.
func recovered(result *error, do func() error) {
	defer func() {
		if cause := recover(); cause != nil {
			*result = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	*result = do()
}
