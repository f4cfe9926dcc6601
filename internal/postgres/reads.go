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
	batcher *groupcommit.Batcher[lookup[Q], A]
	read    func(ctx context.Context, lookups []Q) (results []A, err error)
}

type lookup[Q any] struct {
	of    Q
	alone bool // after a read of several has failed
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
	r.batcher = &groupcommit.Batcher[lookup[Q], A]{
		Slots: make(chan struct{}, cmp.Or(most, defaultConns)), Call: r.call, Fit: fit[Q],
	}
	return r
}

// fit is how many lookups one read takes.
func fit[Q any](queue []lookup[Q]) int {
	shared := slices.IndexFunc(queue, func(l lookup[Q]) bool { return l.alone })
	if shared < 0 {
		shared = len(queue)
	}
	return min(max(shared, 1), maxLookups)
}

// Lookup returns the result of a lookup, or the error of the read. If ctx ends, also while
// the read is in flight, Lookup returns its error. When a read of several lookups fails, each is read
// again alone, except after a lost connection and after a lock, which would delay each of them alike.
func (r *Reads[Q, A]) Lookup(ctx context.Context, of Q) (result A, err error) {
	if ctx.Err() == nil {
		result, err = r.batcher.Do(ctx, lookup[Q]{of: of})
	}
	if errors.Is(err, errOfSeveral) && ctx.Err() == nil {
		result, err = r.batcher.Do(ctx, lookup[Q]{of: of, alone: true})
	}
	if ended := ctx.Err(); ended != nil {
		return *new(A), ended
	}
	return result, err
}

var errOfSeveral = errors.New("a read of several lookups failed")

func (r *Reads[Q, A]) call(ctx context.Context, lookups []lookup[Q]) []groupcommit.Result[A] {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	of := make([]Q, len(lookups))
	for i, l := range lookups {
		of[i] = l.of
	}
	found, err := r.read(ctx, of)
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
