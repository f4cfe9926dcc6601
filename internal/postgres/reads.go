package postgres

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/payonce/payonce/groupcommit"
)

// Reads batches lookups: those that callers make while a read is in flight share the next
// round trip. A lookup is sent after it was made, so its result has everything that was
// committed until then. Nothing is cached.
type Reads[Q, A any] struct {
	batcher groupcommit.Batcher[Q, A]
	read    func(ctx context.Context, lookups []Q) (results []A, err error)
}

const (
	maxLookups = 64 // of one read

	// readTimeout bounds a read and its repetitions, which no caller may cancel, since others wait for them too.
	readTimeout = 15 * time.Second
)

// NewReads batches the lookups of a function that takes 1 to 64 of them and returns their results,
// in their order. Its context has the values of one of the callers, and a deadline of its own. At
// most so many reads are in flight at a time; 20 where most is zero.
func NewReads[Q, A any](most int, read func(ctx context.Context, lookups []Q) (results []A, err error)) *Reads[Q, A] {
	r := &Reads[Q, A]{read: read}
	r.batcher = groupcommit.Batcher[Q, A]{
		Slots: make(chan struct{}, cmp.Or(most, defaultConns)), Call: r.call,
		Fit: func(queue []Q) int { return min(len(queue), maxLookups) },
	}
	return r
}

// Lookup returns the result of a lookup, or the error of the read. If ctx ends, also while
// the read is in flight, Lookup returns its error. When the server refuses a read of several lookups, each
// is read again alone, one after the other: what it refuses in one of them does not reach the others.
func (r *Reads[Q, A]) Lookup(ctx context.Context, of Q) (result A, err error) {
	result, err = r.batcher.Do(ctx, of)
	if ended := ctx.Err(); ended != nil {
		return *new(A), ended
	}
	return result, err
}

func (r *Reads[Q, A]) call(ctx context.Context, lookups []Q) (results []groupcommit.Result[A]) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	found, err := r.read(ctx, lookups)
	if len(lookups) > 1 && groupcommit.OutcomeOf(groupcommit.Classify(err)) == groupcommit.Refused {
		for i := range lookups {
			results = append(results, r.call(ctx, lookups[i:i+1])...)
		}
		return results
	}
	if err == nil && len(found) != len(lookups) {
		err = fmt.Errorf("%d lookups have %d results", len(lookups), len(found))
	}
	if err != nil {
		found = make([]A, len(lookups))
	}
	for _, value := range found {
		results = append(results, groupcommit.Result[A]{Value: value, Err: err})
	}
	return results
}
