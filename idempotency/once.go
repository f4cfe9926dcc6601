package idempotency

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Once does the work of any function once per key: its writes, its typed result
// and its key are one commit, and whoever asks again is given the result.
//
// It promises nothing of what the work does elsewhere. A call to another system
// belongs behind an outbox, or needs a key of its own there.
type Once[In, Out any] struct {
	Receiver Receiver

	// Scope and Operation are the place of the keys. Operation should hold a
	// version ("charge.v1"): stored results are read as Out.
	Scope     string
	Operation string

	// Work queues its writes on b and returns the result. It may be called more
	// than once, and one call is committed: see Decide. After an error nothing is,
	// and the key is free; a failure that is final is a result, so it belongs in
	// Out.
	//
	// The result is stored in the same batch, so Work cannot read what the batch
	// returns: a statement with a callback is ErrReadsBatch. Make ids in Go, or read
	// before. "insert … returning id" would store zero.
	Work func(ctx context.Context, b *pgx.Batch, in In) (Out, error)

	// Key derives the key of an input; nil means a hash of all that Same says.
	Key func(In) (string, error)

	// Same is what has to be equal in all inputs under one key, as JSON: another
	// one is ErrReused. nil means the whole input. What encoding/json leaves out is
	// not compared, such as fields that are not exported. Text that is not UTF-8 is
	// ErrNotJSON, since many inputs would be written alike; a struct without any
	// exported field is ErrUnstable.
	Same func(In) any

	// Also derives further keys, which must be free too and are taken with the
	// first: the key of the window before (see Window). If one is taken, what was
	// done under it is the answer. nil means none.
	Also func(In) ([]string, error)

	// Forget stores neither result nor input. A duplicate is then given the zero
	// value of Out, and so is, rarely, the first one whose commit was answered late.
	Forget bool

	// Concurrency bounds how many inputs DoAll works on at once; 8 where zero.
	Concurrency int
}

// ErrReadsBatch is returned, wrapped, for a Work that queues a statement with a
// callback, such as QueryRow's: it would run after the result is stored. Nothing is
// committed, and the key is free.
var ErrReadsBatch = errors.New("the work reads from its own batch, which runs after its result is stored")

// Result is what Once has to say of one input.
type Result[T any] struct {
	Key       string
	Value     T    // as it was stored: what JSON does not keep of it is gone the first time too
	Duplicate bool // the work had been done before
	Err       error
}

// Do does the work, or returns what came of it before. Errors are those of
// Receive and of Key, and ErrReadsBatch, also found in the result. ErrExpired: the work was done, and
// its result is no longer kept.
func (o Once[In, Out]) Do(ctx context.Context, in In) (Result[Out], error) {
	ask, err := o.ask(in)
	if err != nil {
		return Result[Out]{Err: err}, err
	}
	result := o.do(ask, func(decide Decide) (Outcome, error) {
		return o.Receiver.Receive(ctx, ask.key, ask.request, decide)
	})
	return result, result.Err
}

// asked is one input under its key.
type asked[In any] struct {
	in      In
	key     Key
	request Request
}

// ask derives key and request of an input.
func (o Once[In, Out]) ask(in In) (asked[In], error) {
	same := any(in)
	if o.Same != nil {
		same = o.Same(in)
	}
	canonical, err := canonicalOf(same)
	if err != nil {
		return asked[In]{}, fmt.Errorf("encode an input of %s: %w", o.Operation, err)
	}
	a := asked[In]{
		in:      in,
		key:     Key{Scope: o.Scope, Operation: o.Operation},
		request: Request{Fingerprint: Fingerprint([]byte("once.v1"), []byte(o.Operation), canonical)},
	}
	if !o.Forget {
		a.request.Canonical = canonical
	}
	if o.Key == nil {
		a.key.Value, err = ContentKey(o.Operation, canonical)
	} else {
		a.key.Value, err = o.Key(in)
	}
	if err == nil && o.Also != nil {
		a.request.Also, err = o.Also(in)
	}
	for _, value := range append([]string{a.key.Value}, a.request.Also...) {
		if err == nil {
			err = Validate(value)
		}
	}
	if err != nil {
		return asked[In]{}, fmt.Errorf("derive a key of %s: %w", o.Operation, err)
	}
	return a, nil
}

// do receives one input and reads its answer.
func (o Once[In, Out]) do(ask asked[In], receive func(Decide) (Outcome, error)) Result[Out] {
	result := Result[Out]{Key: ask.key.Value}
	var forgotten Out
	outcome, err := receive(func(ctx context.Context, b *pgx.Batch, _ time.Time) (Answer, error) {
		out, err := o.Work(ctx, b, ask.in)
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
		return o.stored(out)
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

func (o Once[In, Out]) stored(out Out) (Answer, error) {
	body, err := json.Marshal(out)
	if err != nil {
		return Answer{}, fmt.Errorf("encode a result of %s: %w", o.Operation, err)
	}
	return Answer{StatusCode: http.StatusOK, ContentType: "application/json", Body: body}, nil
}
