package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
)

// Reads batches lookups: those that callers make while a read is in flight share the next
// round trip. A lookup is sent after it was made, so its result has everything that was
// committed until then. Nothing is cached.
type Reads[Q, A any] struct {
	shared, single *groupcommit.Batcher[Q, A]
	read           func(ctx context.Context, lookups []Q) (results []A, err error)
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
	r, slots := &Reads[Q, A]{read: read}, make(chan struct{}, cmp.Or(most, defaultConns))
	fit := func(n int) func([]Q) int { return func(queue []Q) int { return min(len(queue), n) } }
	r.shared = &groupcommit.Batcher[Q, A]{Slots: slots, Call: r.call, Fit: fit(maxLookups)}
	r.single = &groupcommit.Batcher[Q, A]{Slots: slots, Call: r.call, Fit: fit(1)}
	return r
}

// Lookup returns the result of a lookup, or the error of the read. If ctx ends, also while
// the read is in flight, Lookup returns its error. When a read of several lookups fails, each is read
// again alone, except after a lost connection and after a lock, which would delay each of them alike.
func (r *Reads[Q, A]) Lookup(ctx context.Context, of Q) (result A, err error) {
	if ctx.Err() == nil {
		result, err = r.shared.Do(ctx, of)
	}
	if errors.Is(err, errOfSeveral) && ctx.Err() == nil {
		result, err = r.single.Do(ctx, of)
	}
	if ended := ctx.Err(); ended != nil {
		return *new(A), ended
	}
	return result, err
}

var errOfSeveral = errors.New("a read of several lookups failed")

func (r *Reads[Q, A]) call(ctx context.Context, lookups []Q) []groupcommit.Result[A] {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	found, err := r.read(ctx, lookups)
	if err == nil && len(found) != len(lookups) {
		err = fmt.Errorf("%d lookups have %d results", len(lookups), len(found))
	}
	if err != nil {
		if len(lookups) > 1 && ctx.Err() == nil && !isLost(err) && groupcommit.OutcomeOf(err) != groupcommit.Locked {
			err = errOfSeveral
		}
		return slices.Repeat([]groupcommit.Result[A]{{Err: err}}, len(lookups))
	}
	results := make([]groupcommit.Result[A], len(lookups))
	for i := range results {
		results[i].Value = found[i]
	}
	return results
}

// isLost reports whether a read failed because the server was not reached, did not answer, or ended
// the session, or because its standby has not confirmed what the read depends on.
func isLost(err error) bool {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	refused, answered := errors.AsType[*pgconn.PgError](err)
	ended := answered && refused.SeverityUnlocalized == "FATAL"
	return connecting || network || ended || errors.Is(err, errNotReplicated) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}
