package groupcommit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// queuedBatch is the batch of one caller.
type queuedBatch struct {
	ctx    context.Context // the caller's, with its trace and the time at which it leaves
	tenant string          // whose rows its statements may write; "" for none
	// batch is a copy: pgx notes in a query on which connection it is prepared, so the caller's
	// own can be committed again.
	batch *pgx.Batch

	taken atomic.Bool // by what sends it, or by its caller, which leaves

	// A callback that runs reads from the connection. The end of sending, by abandon, closes that.
	sending   context.Context
	abandon   context.CancelFunc
	callbacks sync.Mutex // held while one runs
	left      bool       // none is called any more
}

func newQueuedBatch(ctx context.Context, tenant string, b *pgx.Batch) *queuedBatch {
	q := &queuedBatch{ctx: ctx, tenant: tenant, sending: context.WithoutCancel(ctx), abandon: func() {}}
	q.batch = &pgx.Batch{}
	for _, of := range b.QueuedQueries {
		query := q.batch.Queue(of.SQL, of.Arguments...)
		if of.Fn != nil {
			query.Fn = q.callback(of.Fn)
		}
	}
	return q
}

// callback returns fn for as long as the caller waits.
func (q *queuedBatch) callback(fn func(pgx.BatchResults) error) func(pgx.BatchResults) error {
	if q.sending.Done() == nil {
		q.sending, q.abandon = context.WithCancel(q.sending)
	}
	return func(results pgx.BatchResults) error {
		q.callbacks.Lock()
		defer q.callbacks.Unlock()
		if q.left {
			_, err := results.Exec()
			return err
		}
		return fn(results)
	}
}

// take reports whether the batch may be sent. Then the caller cannot leave without an unknown
// outcome.
func (q *queuedBatch) take() bool { return q.taken.CompareAndSwap(false, true) }

// leave returns the error for a caller that waits no longer. A batch that was not sent never is.
// The connection of one that was sent is left to the server's answer, unless a callback is
// reading from it.
func (q *queuedBatch) leave(cause error) error {
	if q.take() {
		return fmt.Errorf("%w: %w: %w", ErrNotCommitted, ErrNotSent, cause)
	}
	if !q.callbacks.TryLock() {
		q.abandon()
		q.callbacks.Lock()
	}
	defer q.callbacks.Unlock()
	q.left = true
	return fmt.Errorf("%w: %w", ErrUnknown, cause)
}
