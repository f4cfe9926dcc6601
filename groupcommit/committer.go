package groupcommit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
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
	// Writes are the statements that may share a transaction; where nil, each batch has its own.
	Writes *Statements
	// Timeout bounds one call of Commit; 15 s unless set. The pool's statement_timeout should be shorter,
	// so that a commit without an answer by then waits for a standby or for a server that hangs.
	Timeout time.Duration
	// LockTimeout bounds the wait for one lock in a group commit; 200 ms unless set. It should be below
	// PostgreSQL's deadlock_timeout, which is a second.
	LockTimeout time.Duration
	// SetTenant queues the statement that names a tenant for those after it in the transaction, see CommitAs.
	SetTenant func(b *pgx.Batch, tenant string)
	// Confirm, where set, is called after a commit that the server has acknowledged, with its connection.
	// If it returns an error, of whatever kind, the outcome is unknown.
	Confirm func(ctx context.Context, conn *pgxpool.Conn) error
	// Committed, where set, is called with what a commit wakes, see Statement.Wakes: before Commit returns,
	// and also where that has returned ErrUnknown already. It must return at once.
	Committed func(names []string)
}

// Bounds of one group commit, and so of how long its transaction is open. A reader of rows in the order of
// transaction ids, such as a follower of the ledger, waits for the end of the oldest.
const (
	maxBatches    = 64
	maxStatements = 500
)

// Committer commits batches, each in one transaction and one round trip. Batches that arrive at the same
// moment and consist of declared statements share the transaction. A caller of Commit cannot tell the
// difference; the package lists what that rests on. There is nothing to close.
type Committer struct {
	pool                       *pgxpool.Pool
	tracer                     pgx.BatchTracer // of the pool; nil for none
	options                    Options
	shared                     Batcher[*queuedBatch, struct{}]
	single                     Batcher[*queuedBatch, struct{}] // of one batch each
	commits, batches, refusals atomic.Int64
	inFlight                   atomic.Int64 // commits without an answer
	confirmed                  atomic.Int64 // when a commit was confirmed last, or the first one in flight began
}

// New returns a committer that commits through a pool. It panics if the pool is nil.
func New(pool *pgxpool.Pool, o Options) *Committer {
	o.Writes = cmp.Or(o.Writes, NewStatements())
	o.Timeout, o.LockTimeout = cmp.Or(o.Timeout, 15*time.Second), cmp.Or(o.LockTimeout, 200*time.Millisecond)
	c, slots := &Committer{pool: pool, options: o}, make(chan struct{}, max(1, pool.Config().MaxConns/2))
	c.tracer, _ = pool.Config().ConnConfig.Tracer.(pgx.BatchTracer)
	call := func(_ context.Context, batches []*queuedBatch) []Result[struct{}] {
		return slices.Repeat([]Result[struct{}]{{Err: c.commit(batches)}}, len(batches)) //nolint:contextcheck // it ends with none of its callers
	}
	c.shared = Batcher[*queuedBatch, struct{}]{Call: call, Slots: slots, Fit: fit}
	c.single = Batcher[*queuedBatch, struct{}]{Call: call, Slots: slots, Fit: func([]*queuedBatch) int { return 1 }, nextAfter: 1}
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
	Late     int64 // commits in flight, of any kind, of which the server has confirmed none for 3 s
}

// Stats returns the counts since New, and how many commits are late now.
func (c *Committer) Stats() Stats {
	s := Stats{c.commits.Load(), c.batches.Load(), c.refusals.Load(), c.inFlight.Load()}
	// Locks and slow statements delay a commit for as long at times, but not each one.
	if time.Since(time.UnixMicro(c.confirmed.Load())) < 3*time.Second { //nolint:forbidigo // it decides only what is reported
		s.Late = 0
	}
	return s
}

// Stalled reports whether commits are late: the synchronous standby is away, or the server hangs.
func (c *Committer) Stalled() bool { return c.Stats().Late > 0 }

// errAlone is the error of a batch that is committed individually: the group was refused, and left nothing,
// and another batch may be the reason.
var errAlone = errors.New("commit it individually")

// Commit sends a copy of the batch as one implicit transaction in one round trip: all of it is durable, or
// none of it is. OutcomeOf says which. A batch holds no statement of transaction control: a commit inside
// it would make half of it durable.
//
// The context's cancellation does not reach it: a client that hangs up must not turn a commit into an
// unknown one. Its deadline does, and so does Options.Timeout: a batch that is still queued then is never
// sent, and the error is ErrNotSent. Another one goes on, and the error is ErrUnknown; its callbacks are
// not called any more, and its arguments must not be changed. Commit does not return while a callback runs.
func (c *Committer) Commit(ctx context.Context, b *pgx.Batch) error { return c.CommitAs(ctx, "", b) }

// CommitAs is Commit for a tenant, which Options.SetTenant names first; "" for none.
//
// If we die here: all batches of a transaction are durable or none is, as with commits of their own.
// Test: TestGroupCommit_reportsOutcomesThatAreTrueUnderFaults.
func (c *Committer) CommitAs(ctx context.Context, tenant string, b *pgx.Batch) error {
	if b.Len() == 0 {
		return errors.New("the batch is empty: nothing to commit")
	}
	timeout := c.options.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline)) //nolint:forbidigo // a context knows no other clock
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	q, err := &queuedBatch{ctx: ctx, tenant: tenant, batch: *b}, errAlone
	if c.options.Writes.shares(b) {
		_, err = c.shared.Do(ctx, q)
	}
	if errors.Is(err, errAlone) {
		_, err = c.single.Do(ctx, q)
	}
	if err != nil && err == ctx.Err() { //nolint:errorlint // unwrapped where it was still queued
		return fmt.Errorf("%w: %w: %w", ErrNotCommitted, ErrNotSent, err)
	}
	q.callbacks.Lock() // it waits for the callback that runs; none runs after Commit has returned
	return err
}

// queuedBatch is the batch of one caller.
type queuedBatch struct {
	ctx       context.Context // the caller's, with its trace and the time at which it leaves
	tenant    string          // whose rows its statements may write; "" for none
	batch     pgx.Batch
	callbacks sync.Mutex // held while one runs, and for ever once the caller has left, so that none runs any more
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

// commit commits batches in one transaction. It keeps its connection until the server answers, also after
// its callers have left: if it closed the connection, the session would wait on, and the pool would open another.
func (c *Committer) commit(batches []*queuedBatch) error {
	conn, err := c.pool.Acquire(batches[0].ctx) // which has waited for the longest
	if err != nil {
		return fmt.Errorf("%w: acquire a connection: %w", ErrNotCommitted, err)
	}
	defer conn.Release()
	if len(batches) > 1 {
		return c.sendGroup(conn, batches)
	}
	return c.sendOne(conn, batches)
}

// awaitAnswer is a first statement without a callback: pgx waits for the server there, and not in a callback of a
// caller. The server sends all results when the transaction has ended, unless they have more than 8 kB.
const awaitAnswer = `-- groupcommit.awaitAnswer
select`

// sendOne sends a batch in its own transaction.
func (c *Committer) sendOne(conn *pgxpool.Conn, batches []*queuedBatch) error {
	b, q := &pgx.Batch{}, batches[0]
	switch {
	case q.tenant != "":
		c.options.SetTenant(b, q.tenant)
	case q.batch.QueuedQueries[0].Fn != nil:
		b.Queue(awaitAnswer)
	}
	// A copy, so the caller's own can be committed again: pgx notes in a query where it is prepared.
	for _, of := range q.batch.QueuedQueries {
		sent := b.Queue(of.SQL, of.Arguments...)
		if of.Fn == nil {
			continue
		}
		sent.Fn = func(results pgx.BatchResults) error {
			if !q.callbacks.TryLock() { // the caller has left
				_, err := results.Exec()
				return err
			}
			defer q.callbacks.Unlock()
			return of.Fn(results)
		}
	}
	return c.send(context.WithoutCancel(q.ctx), conn, b, batches)
}

// setLockTimeout ends with the transaction.
const setLockTimeout = `
-- groupcommit.setLockTimeout
select set_config('lock_timeout', $1, true)`

// sendGroup sends batches in one transaction. If that is refused, the error of each is errAlone.
func (c *Committer) sendGroup(conn *pgxpool.Conn, batches []*queuedBatch) error {
	// A group commit is in no caller's trace. Each batch is in that of its caller, for as long.
	var unknown error
	if c.tracer != nil {
		for _, q := range batches {
			traced := c.tracer.TraceBatchStart(q.ctx, conn.Conn(), pgx.TraceBatchStartData{Batch: &q.batch})
			defer func() { c.tracer.TraceBatchEnd(traced, conn.Conn(), pgx.TraceBatchEndData{Err: unknown}) }()
		}
	}
	b := &pgx.Batch{}
	b.Queue(setLockTimeout, strconv.FormatInt(c.options.LockTimeout.Milliseconds(), 10))
	c.options.Writes.queueGroup(b, batches, c.options.SetTenant)
	err := c.send(context.Background(), conn, b, batches)
	switch {
	case err == nil:
		c.commits.Add(1)
		c.batches.Add(int64(len(batches)))
	case OutcomeOf(err) != Unknown:
		c.refusals.Add(1)
		return errAlone
	}
	unknown = err
	return err
}

// send sends the transaction of batches, and reports what a commit of them wakes.
func (c *Committer) send(ctx context.Context, conn *pgxpool.Conn, b *pgx.Batch, batches []*queuedBatch) error {
	if c.inFlight.Load() == 0 {
		c.confirm()
	}
	c.inFlight.Add(1)
	defer c.inFlight.Add(-1)
	// A deferred constraint refuses in Close, after the last Exec.
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return Classify(err)
	}
	if c.options.Confirm != nil {
		if err := c.options.Confirm(ctx, conn); err != nil {
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		}
	}
	c.confirm()
	if names := c.options.Writes.wakes(batches); len(names) > 0 && c.options.Committed != nil {
		c.options.Committed(names)
	}
	return nil
}

func (c *Committer) confirm() {
	c.confirmed.Store(time.Now().UnixMicro()) //nolint:forbidigo // it decides only what is reported
}
