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
	Writes *Order
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
	maxUnits      = 64
	maxStatements = 500
)

// Committer commits batches, each in one transaction and one round trip. Batches that
// arrive at the same moment and consist of declared statements share the transaction. A
// caller of Commit cannot tell the difference:
//
//   - It gets its result only after BatchResults.Close reports that the transaction
//     committed.
//   - Only a commit of its own refuses a batch. When a group commit is refused, nothing of
//     it is durable: each half is sent as a transaction, and so on, down to single batches,
//     which are retried individually. If it waited too long for a lock, each batch is retried
//     individually at once.
//   - When the outcome of the transaction is unknown, it is unknown for each batch, and none
//     is retried: its caller resolves it by its key.
//   - The tenant is set anew wherever the next statement is another tenant's.
//   - Only declared statements take part (see Order). Any other batch commits in its own
//     transaction: it may have other settings, callbacks and locks.
//
// Batches of one stream or one key may meet in one transaction, with the same result as one
// after the other: the second is refused.
//
// A Committer has no goroutine while nothing is queued or in flight, and nothing to close.
type Committer struct {
	pool    *pgxpool.Pool
	tracer  pgx.BatchTracer // of the pool; nil for none
	options Options
	batcher Batcher[*unit, struct{}]

	commits, units, refusals atomic.Int64
}

// New returns a committer that commits through a pool. A pool that is nil is a programming
// error, and New panics.
func New(pool *pgxpool.Pool, o Options) *Committer {
	if pool == nil {
		panic("groupcommit: the pool is nil")
	}
	o.Timeout, o.LockTimeout = cmp.Or(o.Timeout, defaultTimeout), cmp.Or(o.LockTimeout, defaultLockTimeout)
	c := &Committer{pool: pool, options: o, batcher: Batcher[*unit, struct{}]{Fit: fit}}
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

// Shared counts group commits.
type Shared struct {
	Commits  int64 // with several batches
	Units    int64 // batches in them
	Refusals int64 // group commits that were refused
}

// Shared returns the counts of group commits since New.
func (c *Committer) Shared() Shared {
	return Shared{c.commits.Load(), c.units.Load(), c.refusals.Load()}
}

// unit is a batch and its caller.
type unit struct {
	Unit

	ctx context.Context // the caller's, with its trace and a deadline
}

type result = Result[struct{}] // of a unit in a group commit

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
	u := &unit{Unit{Tenant: tenant, Batch: b}, ctx}
	commit := c.commitAlone
	if c.options.Writes != nil && c.options.Writes.Shares(b) {
		commit = c.commitShared
	}
	err := commit(u)
	if err == nil && c.options.Committed != nil {
		c.options.Committed(b)
	}
	return err
}

// commitAlone commits a unit in its own transaction.
func (c *Committer) commitAlone(u *unit) error {
	conn, err := c.pool.Acquire(u.ctx)
	if err != nil {
		return notAcquired(err)
	}
	defer conn.Release()
	b := u.Batch
	if u.Tenant != "" {
		b = &pgx.Batch{}
		c.options.SetTenant(b, u.Tenant)
		b.QueuedQueries = append(b.QueuedQueries, u.Batch.QueuedQueries...)
	}
	return c.closeCommit(u.ctx, conn, conn.SendBatch(u.ctx, b))
}

func notAcquired(err error) error {
	return fmt.Errorf("%w: acquire a connection: %w", ErrNotCommitted, err)
}

// closeCommit ends a batch that commits, and returns the error of the commit.
func (c *Committer) closeCommit(ctx context.Context, conn *pgxpool.Conn, results pgx.BatchResults) error {
	err := results.Close() // a deferred constraint refuses here, after the last Exec
	if err == nil && c.options.Confirm != nil {
		err = c.options.Confirm(ctx, conn)
	}
	return Classify(err)
}

// commitShared commits a unit with others that are queued.
//
// If we die here: all units of a transaction are durable or none is, as with commits of
// their own. Test: TestGroupCommit_cutConnectionLeavesAllOrNothing.
func (c *Committer) commitShared(u *unit) error {
	_, err := c.batcher.Do(u.ctx, u)
	switch {
	case errors.Is(err, ErrNotReturned):
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	case err != nil && err == u.ctx.Err(): //nolint:errorlint // the batcher returns it unwrapped where the unit was still queued
		return fmt.Errorf("%w: wait for other commits: %w", ErrNotCommitted, err)
	}
	return err
}

// fit is how many units one group commit takes.
func fit(units []*unit) int {
	statements := 0
	for n, u := range units {
		statements += u.Batch.Len()
		if n > 0 && (n == maxUnits || statements > maxStatements) {
			return n
		}
	}
	return len(units)
}

func (c *Committer) commitAll(_ context.Context, units []*unit) []result {
	if len(units) == 1 {
		return []result{{Err: c.commitAlone(units[0])}}
	}
	return c.commitTogether(units) //nolint:contextcheck // it ends with none of its callers
}

// commitTogether commits units in one transaction where possible.
func (c *Committer) commitTogether(units []*unit) (results []result) {
	ctx, cancel := context.WithTimeout(context.Background(), c.options.Timeout)
	defer cancel()
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return slices.Repeat([]result{{Err: notAcquired(err)}}, len(units))
	}
	defer conn.Release()
	// A group commit is in the trace of none of its units. Each has its own batch in its
	// caller's trace, for as long as the group commit takes.
	if c.tracer != nil {
		for i, u := range units {
			traced := c.tracer.TraceBatchStart(u.ctx, conn.Conn(), pgx.TraceBatchStartData{Batch: u.Batch})
			defer func() { c.tracer.TraceBatchEnd(traced, conn.Conn(), pgx.TraceBatchEndData{Err: results[i].Err}) }()
		}
	}
	return c.divide(ctx, conn, units)
}

// divide commits units in one transaction, or, when that is refused, each half of them. A
// result that is Individually asks the batcher for a commit of the unit's own.
func (c *Committer) divide(ctx context.Context, conn *pgxpool.Conn, units []*unit) []result {
	if len(units) == 1 || conn.Conn().IsClosed() {
		return slices.Repeat([]result{{Individually: true}}, len(units))
	}
	err := c.send(ctx, conn, units)
	if err == nil || OutcomeOf(err) == Unknown {
		if err == nil {
			c.commits.Add(1)
			c.units.Add(int64(len(units)))
		}
		return slices.Repeat([]result{{Err: err}}, len(units))
	}
	c.refusals.Add(1)
	if OutcomeOf(err).Retryable() {
		return slices.Repeat([]result{{Individually: true}}, len(units))
	}
	half := len(units) / 2
	return append(c.divide(ctx, conn, units[:half]), c.divide(ctx, conn, units[half:])...)
}

// setLockTimeout ends with the transaction.
const setLockTimeout = `
select set_config('lock_timeout', $1, true)`

// send commits units in one transaction.
func (c *Committer) send(ctx context.Context, conn *pgxpool.Conn, units []*unit) error {
	sharing := make([]Unit, len(units))
	for i, u := range units {
		sharing[i] = u.Unit
	}
	b := &pgx.Batch{}
	b.Queue(setLockTimeout, strconv.FormatInt(c.options.LockTimeout.Milliseconds(), 10))
	c.options.Writes.Join(b, sharing, c.options.SetTenant)
	return c.closeCommit(ctx, conn, conn.SendBatch(ctx, b))
}
