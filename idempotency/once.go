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

// Once carries out a function once per key: its writes, its typed result and its key are
// one commit, and each later call returns the result.
//
// Nothing is guaranteed for what the work does elsewhere. A call to another system
// belongs behind an outbox, or needs a key of its own there.
type Once[In, Out any] struct {
	Receiver Receiver

	// Scope and Operation are those of the keys. Operation should hold a version
	// ("charge.v1"): stored results are read as Out.
	Scope     string
	Operation string

	// Work queues its writes on b and returns the result. It may be called more than once,
	// and one call is committed: see the type Work. After an error nothing is, and the
	// key is free. A failure that is final is a result, so it belongs in Out.
	//
	// The result is stored in the same batch, so Work cannot read what the batch
	// returns: a statement with a callback is ErrReadsBatch. Make ids in Go, or read
	// before. "insert … returning id" would store zero.
	Work func(ctx context.Context, b *pgx.Batch, in In) (Out, error)

	// Key derives the key of an input; nil means a hash of what Same returns.
	Key func(In) (string, error)

	// Same returns what must be equal in all inputs under one key, as JSON: another
	// one is ErrReused. nil means the whole input. What encoding/json leaves out is
	// not compared, such as fields that are not exported. Text that is not UTF-8 is
	// ErrNotJSON, since many inputs would be written alike; a struct without any
	// exported field is ErrUnstable.
	Same func(In) any

	// Also derives further keys, which must be free too and are claimed with the
	// first: the key of the window before (see Window). If one is taken, its result
	// is returned. nil means none.
	Also func(In) ([]string, error)

	// Forget stores neither result nor input. A duplicate then gets the zero value of
	// Out, and so does the first call if its commit had to be looked up.
	Forget bool
}

// ErrReadsBatch is returned, wrapped, for a Work that queues a statement with a
// callback, such as QueryRow's: it would run after the result is stored. Nothing is
// committed, and the key is free.
var ErrReadsBatch = errors.New("the work reads from its own batch, which runs after its result is stored")

// Result is the result of one input.
type Result[T any] struct {
	Key       string
	Value     T    // as it was stored: what JSON does not keep is lost the first time too
	Duplicate bool // the work had been done before
	Err       error
}

// Do does the work, or returns its stored result. Errors are those of Receive and of
// Key, and ErrReadsBatch; the result holds them too. ErrExpired: the work was done, and its
// result is no longer kept.
func (o Once[In, Out]) Do(ctx context.Context, in In) (Result[Out], error) {
	key, request, err := o.identify(in)
	if err != nil {
		return Result[Out]{Err: err}, err
	}
	result := o.do(ctx, in, key, request)
	return result, result.Err
}

// concurrency is how many inputs DoAll works on at once.
const concurrency = 8

// DoAll does each of many inputs once, and returns their results in the same
// order. One read finds those that are known. Each of the others is a commit of
// its own, so one that fails, or panics, fails alone: its error is in its result.
// The same input twice in one call is done once.
//
// If we die here: some inputs are done and the others are not. The same call does
// the rest. Test: TestDoAll/inputs_that_a_call_left_undone_are_done_by_the_next.
func (o Once[In, Out]) DoAll(ctx context.Context, ins []In) []Result[Out] {
	results, requests := make([]Result[Out], len(ins)), make([]Request, len(ins))
	var known []*KeyState
	for i, in := range ins {
		o.recovered(&results[i], func() {
			key, request, err := o.identify(in)
			if requests[i], results[i] = request, (Result[Out]{Key: key.Value, Err: err}); err == nil {
				requests[i].Known.Key = key
				known = append(known, &requests[i].Known)
			}
		})
	}
	if len(known) == 0 {
		return results
	}
	failure := readKeys(ctx, o.Receiver.DB, selectKeys, known...)
	var work errgroup.Group
	work.SetLimit(concurrency)
	for i, in := range ins {
		result, request := &results[i], requests[i]
		switch {
		case result.Err != nil:
			continue
		case failure != nil:
			result.Err = unavailable(failure)
			continue
		}
		result.Err = errNoReturn // until the work returns
		work.Go(func() error {
			if err := context.Cause(ctx); err != nil && !request.Known.Found {
				result.Err = unavailable(err) // not begun
				return nil
			}
			o.recovered(result, func() { *result = o.do(ctx, in, request.Known.Key, request) })
			return nil
		})
	}
	_ = work.Wait() // each error is in its result
	return results
}

// errNoReturn is the error of a work that ended its goroutine.
var errNoReturn = errors.New("the work did not return")

// recovered makes a panic the error of the input that it comes from.
func (o Once[In, Out]) recovered(result *Result[Out], do func()) {
	defer func() {
		if cause := recover(); cause != nil {
			result.Err = fmt.Errorf("panic in %s: %v\n%s", o.Operation, cause, debug.Stack())
		}
	}()
	do()
}

// identify derives key and request of an input.
func (o Once[In, Out]) identify(in In) (key Key, request Request, err error) {
	same := any(in)
	if o.Same != nil {
		same = o.Same(in)
	}
	canonical, err := canonicalOf(same)
	if err != nil {
		return Key{}, Request{}, fmt.Errorf("encode an input of %s: %w", o.Operation, err)
	}
	key = Key{Scope: o.Scope, Operation: o.Operation}
	request.Fingerprint = Fingerprint([]byte("once.v1"), []byte(o.Operation), canonical)
	if !o.Forget {
		request.Canonical = canonical
	}
	if o.Key == nil {
		key.Value, _, err = Content(o.Operation, canonical)
	} else {
		key.Value, err = o.Key(in)
	}
	if err == nil && o.Also != nil {
		request.Also, err = o.Also(in)
	}
	for _, value := range append([]string{key.Value}, request.Also...) {
		if err == nil {
			err = Validate(value)
		}
	}
	if err != nil {
		return Key{}, Request{}, fmt.Errorf("derive a key of %s: %w", o.Operation, err)
	}
	return key, request, nil
}

// do receives one input and reads its answer.
func (o Once[In, Out]) do(ctx context.Context, in In, key Key, request Request) Result[Out] {
	result := Result[Out]{Key: key.Value}
	var forgotten Out
	outcome, err := o.Receiver.Receive(ctx, key, request, func(ctx context.Context, b *pgx.Batch, _ time.Time) (Answer, error) {
		out, err := o.Work(ctx, b, in)
		if err != nil {
			return Answer{}, err
		}
		if slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool { return q.Fn != nil }) {
			return Answer{}, fmt.Errorf("do the work of %s: %w", o.Operation, ErrReadsBatch)
		}
		if o.Forget {
			forgotten = out
			return Answer{StatusCode: http.StatusNoContent}, nil
		}
		body, err := json.Marshal(out)
		if err != nil {
			return Answer{}, fmt.Errorf("encode a result of %s: %w", o.Operation, err)
		}
		return Answer{StatusCode: http.StatusOK, ContentType: "application/json", Body: body}, nil
	})
	result.Duplicate = outcome.Replayed && err == nil
	switch {
	case err != nil:
		result.Err = err
	case outcome.StatusCode != http.StatusNoContent:
		if err := json.Unmarshal(outcome.Body, &result.Value); err != nil {
			result.Err = fmt.Errorf("read the stored result of %s: %w", o.Operation, err)
		}
	case !outcome.Replayed:
		result.Value = forgotten
	}
	return result
}
