package groupcommit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Querier reads. A Committer is one, and so are a pgx pool, connection and transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// DB reads and commits. A *Committer is one.
type DB interface {
	Querier
	Commit(ctx context.Context, b *pgx.Batch) error
}

// Options of a Committer. Zero values mean the defaults named beside them.
type Options struct {
	// Writes are the statements that may share a transaction with other batches that are
	// committed at the same moment; where nil, each batch has its own transaction.
	Writes *Statements
	// Timeout bounds one commit; 15 s unless set. The outcome of a commit that takes longer
	// is unknown. The pool's statement_timeout should be shorter, so that this is rare. A
	// batch may have been queued for as long before.
	Timeout time.Duration
	// LockTimeout bounds the wait for one lock in a group commit; 200 ms unless set. It
	// should be below PostgreSQL's deadlock_timeout, which is a second.
	LockTimeout time.Duration
	// SetTenant, where set, queues the statement that names a tenant for those after it in
	// the transaction, see CommitAs.
	SetTenant func(b *pgx.Batch, tenant string)
	// Confirm, where set, is called after a commit that the server has acknowledged, with
	// its connection. If it returns an error, the outcome is unknown.
	Confirm func(ctx context.Context, conn *pgxpool.Conn) error
	// Committed, where set, is called with each batch that was committed. It must return
	// at once.
	Committed func(b *pgx.Batch)
}

const (
	defaultTimeout     = 15 * time.Second
	defaultLockTimeout = 200 * time.Millisecond
)

// Bounds of one group commit. Readers of an outbox wait for the end of the oldest.
const (
	maxBatches    = 64
	maxStatements = 500
)

// Committer commits batches, each in one transaction and one round trip. Batches that
// arrive at the same moment and consist of declared statements share the transaction. A
// caller of Commit cannot tell the difference; the package lists what that rests on.
//
// A Committer has no goroutine while nothing is queued or in flight, and nothing to close.
type Committer struct {
	pool    *pgxpool.Pool
	tracer  pgx.BatchTracer // of the pool; nil for none
	options Options
	batcher Batcher[*queuedBatch, bool]

	commits, batches, refusals atomic.Int64
}

// New returns a committer that commits through a pool. A pool that is nil is a programming
// error, and New panics.
func New(pool *pgxpool.Pool, o Options) *Committer {
	if pool == nil {
		panic("groupcommit: the pool is nil")
	}
	o.Timeout, o.LockTimeout = cmp.Or(o.Timeout, defaultTimeout), cmp.Or(o.LockTimeout, defaultLockTimeout)
	c := &Committer{pool: pool, options: o, batcher: Batcher[*queuedBatch, bool]{
		Fit: fit, MaxInFlight: int(max(1, pool.Config().MaxConns/2)), // commits that hang leave connections to reads
	}}
	c.tracer, _ = pool.Config().ConnConfig.Tracer.(pgx.BatchTracer)
	c.batcher.Call = c.commitAll
	return c
}

// Query reads rows through the pool.
func (c *Committer) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return c.pool.Query(ctx, sql, args...)
}

// QueryRow reads one row through the pool.
func (c *Committer) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return c.pool.QueryRow(ctx, sql, args...)
}

// Stats counts group commits.
type Stats struct {
	Commits  int64 // with several batches
	Batches  int64 // in them
	Refusals int64 // group commits that were refused
}

// Stats returns the counts of group commits since New.
func (c *Committer) Stats() Stats {
	return Stats{c.commits.Load(), c.batches.Load(), c.refusals.Load()}
}

// queuedBatch is the batch of one caller.
type queuedBatch struct {
	ctx    context.Context // the caller's, with its trace and a deadline
	tenant string          // whose rows its statements may write; "" for none
	batch  *pgx.Batch
}

// result is that of a batch in a group commit. Its value is true where the group was refused,
// and left nothing: another batch may be the reason, so this one commits individually.
type result = Result[bool]

var errNothingToCommit = errors.New("the batch is empty: nothing to commit")

// Commit sends the whole batch as one implicit transaction in one round trip:
// all of it is durable, or none of it is. OutcomeOf says which. A batch holds no
// statement of transaction control: a commit inside it would make half of it durable.
//
// The context's cancellation does not reach it: a client that hangs up must not
// turn a commit into an unknown one.
func (c *Committer) Commit(ctx context.Context, b *pgx.Batch) error { return c.CommitAs(ctx, "", b) }

// CommitAs is Commit for a tenant, which Options.SetTenant names first; "" for none.
func (c *Committer) CommitAs(ctx context.Context, tenant string, b *pgx.Batch) error {
	if b.Len() == 0 {
		return errNothingToCommit
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.options.Timeout)
	defer cancel()
	q := &queuedBatch{ctx, tenant, b}
	commit := c.commitIndividually
	if c.options.Writes != nil && c.options.Writes.shares(b) {
		commit = c.commitQueued
	}
	err := commit(q)
	if err == nil && c.options.Committed != nil {
		c.options.Committed(b)
	}
	return err
}

// commitIndividually commits a batch in its own transaction.
func (c *Committer) commitIndividually(q *queuedBatch) error {
	conn, err := c.pool.Acquire(q.ctx)
	if err != nil {
		return notAcquired(err)
	}
	defer conn.Release()
	b := &pgx.Batch{} // pgx sends a batch once: it notes in each query on which connection it is prepared
	if q.tenant != "" {
		c.options.SetTenant(b, q.tenant)
	}
	for _, query := range q.batch.QueuedQueries {
		b.Queue(query.SQL, query.Arguments...).Fn = query.Fn
	}
	return c.closeCommit(q.ctx, conn, conn.SendBatch(q.ctx, b))
}

func notAcquired(err error) error {
	return fmt.Errorf("%w: acquire a connection: %w", ErrNotCommitted, err)
}

// closeCommit ends a batch that commits, and returns the error of the commit.
func (c *Committer) closeCommit(ctx context.Context, conn *pgxpool.Conn, results pgx.BatchResults) error {
	if err := results.Close(); err != nil { // a deferred constraint refuses here, after the last Exec
		return Classify(err)
	}
	if c.options.Confirm == nil {
		return nil
	}
	if err := c.options.Confirm(ctx, conn); err != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return nil
}

// commitQueued queues a batch, and commits it with the others in the queue.
//
// If we die here: all batches of a transaction are durable or none is, as with commits of
// their own. Test: TestGroupCommit_cutConnectionLeavesAllOrNothing.
func (c *Committer) commitQueued(q *queuedBatch) error {
	refused, err := c.batcher.Do(q.ctx, q)
	switch {
	case refused:
		return c.commitIndividually(q)
	case errors.Is(err, ErrNotReturned):
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	case err != nil && err == q.ctx.Err(): //nolint:errorlint // the batcher returns it unwrapped where the batch was still queued
		return fmt.Errorf("%w: wait for other commits: %w", ErrNotCommitted, err)
	}
	return err
}

// fit is how many batches one group commit takes.
func fit(batches []*queuedBatch) int {
	statements := 0
	for n, q := range batches {
		statements += q.batch.Len()
		if n > 0 && (n == maxBatches || statements > maxStatements) {
			return n
		}
	}
	return len(batches)
}

func (c *Committer) commitAll(_ context.Context, batches []*queuedBatch) []result {
	if len(batches) == 1 {
		return []result{{Err: c.commitIndividually(batches[0])}}
	}
	return c.commitGroup(batches) //nolint:contextcheck // it ends with none of its callers
}

// commitGroup commits batches in one transaction. Only a transaction of its own refuses a batch.
func (c *Committer) commitGroup(batches []*queuedBatch) (results []result) {
	ctx, cancel := context.WithTimeout(context.Background(), c.options.Timeout)
	defer cancel()
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return slices.Repeat([]result{{Err: notAcquired(err)}}, len(batches))
	}
	defer conn.Release()
	// A group commit is in the trace of none of its batches. Each is in the
	// trace of its caller, for as long as the group commit takes.
	if c.tracer != nil {
		for i, q := range batches {
			traced := c.tracer.TraceBatchStart(q.ctx, conn.Conn(), pgx.TraceBatchStartData{Batch: q.batch})
			defer func() { c.tracer.TraceBatchEnd(traced, conn.Conn(), pgx.TraceBatchEndData{Err: results[i].Err}) }()
		}
	}
	err = c.send(ctx, conn, batches)
	if err == nil || OutcomeOf(err) == Unknown {
		if err == nil {
			c.commits.Add(1)
			c.batches.Add(int64(len(batches)))
		}
		return slices.Repeat([]result{{Err: err}}, len(batches))
	}
	c.refusals.Add(1)
	return slices.Repeat([]result{{Value: true}}, len(batches))
}

// setLockTimeout ends with the transaction.
const setLockTimeout = `
select set_config('lock_timeout', $1, true)`

// send commits batches in one transaction.
func (c *Committer) send(ctx context.Context, conn *pgxpool.Conn, batches []*queuedBatch) error {
	b := &pgx.Batch{}
	b.Queue(setLockTimeout, strconv.FormatInt(c.options.LockTimeout.Milliseconds(), 10))
	c.options.Writes.queueGroup(b, batches, c.options.SetTenant)
	return c.closeCommit(ctx, conn, conn.SendBatch(ctx, b))
}
