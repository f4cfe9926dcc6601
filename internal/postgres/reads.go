package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
)

// Reads batches lookups: those that callers make while a read is in flight share the next
// round trip. A lookup is sent after it was made, so its result has everything that was
// committed until then. Nothing is cached.
type Reads[Q, A any] struct {
	batcher *groupcommit.Batcher[Q, A]
	read    func(ctx context.Context, lookups []Q) (results []A, err error)
}

const (
	maxLookups = 64 // of one read

	// readTimeout bounds a read, which no caller may cancel, since others wait for it too.
	readTimeout = 15 * time.Second
)

// NewReads batches the lookups of a function that takes 1 to 64 of them and returns their results,
// in their order. Its context has the values of one of the callers, and a deadline of its own. At
// most so many reads are in flight at a time; 20 where most is zero.
func NewReads[Q, A any](most int, read func(ctx context.Context, lookups []Q) (results []A, err error)) *Reads[Q, A] {
	r := &Reads[Q, A]{read: read}
	r.batcher = &groupcommit.Batcher[Q, A]{
		Slots: make(chan struct{}, cmp.Or(most, defaultConns)),
		Fit:   func(queue []Q) int { return min(len(queue), maxLookups) },
		Call: func(ctx context.Context, lookups []Q) []groupcommit.Result[A] {
			ctx, cancel := context.WithTimeout(ctx, readTimeout)
			defer cancel()
			return r.results(ctx, lookups)
		},
	}
	return r
}

// Lookup returns the result of a lookup, or the error of the read. If ctx ends, also while
// the read is in flight, Lookup returns its error. When the server refuses a statement for several
// lookups, each is read again alone, except after a lock, which would delay each of them alike.
func (r *Reads[Q, A]) Lookup(ctx context.Context, of Q) (result A, err error) {
	if ctx.Err() == nil {
		result, err = r.batcher.Do(ctx, of)
	}
	if ended := ctx.Err(); ended != nil {
		return *new(A), ended
	}
	return result, err
}

func (r *Reads[Q, A]) results(ctx context.Context, lookups []Q) []groupcommit.Result[A] {
	found, err := r.read(ctx, lookups)
	if err == nil && len(found) != len(lookups) {
		err = fmt.Errorf("%d lookups have %d results", len(lookups), len(found))
	}
	refused, answered := errors.AsType[*pgconn.PgError](err)
	alone := len(lookups) > 1 && answered && refused.SeverityUnlocalized != "FATAL" && groupcommit.OutcomeOf(err) != groupcommit.Locked
	results := make([]groupcommit.Result[A], len(lookups))
	for i := range results {
		switch {
		case alone:
			results[i] = r.results(ctx, lookups[i:i+1])[0]
		case err != nil:
			results[i].Err = err
		default:
			results[i].Value = found[i]
		}
	}
	return results
}
