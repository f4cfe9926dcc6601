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
	// Timeout bounds one call of Commit; 15 s unless set. The pool's statement_timeout should
	// be shorter, so that a commit without an answer by then waits for a standby or for a
	// server that hangs.
	Timeout time.Duration
	// LockTimeout bounds the wait for one lock in a group commit; 200 ms unless set. It
	// should be below PostgreSQL's deadlock_timeout, which is a second.
	LockTimeout time.Duration
	// SetTenant, where set, queues the statement that names a tenant for those after it in
	// the transaction, see CommitAs.
	SetTenant func(b *pgx.Batch, tenant string)
	// Confirm, where set, is called after a commit that the server has acknowledged, with
	// its connection. If it returns an error, of whatever kind, the outcome is unknown.
	Confirm func(ctx context.Context, conn *pgxpool.Conn) error
	// Committed, where set, is called with what the declared statements of a commit wake, see
	// Statement.Wakes: before Commit returns, and also where that has returned ErrUnknown already.
	// It must return at once.
	Committed func(names []string)
}

// Bounds of one group commit. Readers of an outbox wait for the end of the oldest.
const (
	maxBatches    = 64
	maxStatements = 500
)

// Committer commits batches, each in one transaction and one round trip. Batches that
// arrive at the same moment and consist of declared statements share the transaction. A
// caller of Commit cannot tell the difference; the package lists what that rests on.
//
// A commit keeps its connection until the server answers, also after its caller has left: the
// server would go on with the commit in a session that no bound counts. One whose caller leaves
// while a callback reads closes its connection, and counts for another minute. A Committer has no
// goroutine while nothing is queued or in flight, and nothing to close.
type Committer struct {
	pool    *pgxpool.Pool
	tracer  pgx.BatchTracer // of the pool; nil for none
	options Options
	slots   chan struct{} // of commits in flight
	shared  Batcher[*queuedBatch, struct{}]
	single  Batcher[*queuedBatch, struct{}] // of one batch each

	commits, batches, refusals atomic.Int64

	inFlight, confirmed atomic.Int64 // commits without an answer; when one was confirmed, or the first of these began
}

// New returns a committer that commits through a pool. A pool that is nil is a programming
// error, and New panics.
func New(pool *pgxpool.Pool, o Options) *Committer {
	if pool == nil {
		panic("groupcommit: the pool is nil")
	}
	if o.Writes == nil {
		o.Writes = NewStatements()
	}
	o.Timeout, o.LockTimeout = cmp.Or(o.Timeout, 15*time.Second), cmp.Or(o.LockTimeout, 200*time.Millisecond)
	c := &Committer{pool: pool, options: o, slots: make(chan struct{}, max(1, pool.Config().MaxConns/2))}
	c.tracer, _ = pool.Config().ConnConfig.Tracer.(pgx.BatchTracer)
	call := func(_ context.Context, batches []*queuedBatch) []Result[struct{}] {
		return slices.Repeat([]Result[struct{}]{{Err: c.commitTogether(batches)}}, len(batches)) //nolint:contextcheck // it ends with none of its callers
	}
	c.shared = Batcher[*queuedBatch, struct{}]{Call: call, Slots: c.slots, Fit: fit}
	c.single = Batcher[*queuedBatch, struct{}]{Call: call, Slots: c.slots, Fit: func([]*queuedBatch) int { return 1 }, nextAfter: 1, lingers: lingers}
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

// Stats returns the counts of group commits since New, and how many commits are late now.
func (c *Committer) Stats() Stats {
	late := c.inFlight.Load()
	if time.Since(time.UnixMicro(c.confirmed.Load())) < lateAfter { //nolint:forbidigo // it decides only what is reported
		late = 0
	}
	return Stats{c.commits.Load(), c.batches.Load(), c.refusals.Load(), late}
}

// lateAfter is how long a commit may be in flight, and no other one be confirmed, before it is
// late. Locks and slow statements delay a commit for as long at times, but not each one.
const lateAfter = 3 * time.Second

// Stalled reports whether commits are late: the synchronous standby is away, or the server hangs.
func (c *Committer) Stalled() bool { return c.Stats().Late > 0 }

var (
	errNothingToCommit = errors.New("the batch is empty: nothing to commit")
	// errAlone is the error of a batch that is committed individually: the group was refused, and
	// left nothing, and another batch may be the reason.
	errAlone = errors.New("commit it individually")
)

// Commit sends a copy of the batch as one implicit transaction in one round trip:
// all of it is durable, or none of it is. OutcomeOf says which. A batch holds no
// statement of transaction control: a commit inside it would make half of it durable.
//
// The context's cancellation does not reach it: a client that hangs up must not turn a commit
// into an unknown one. Its deadline does, and so does Options.Timeout: a batch that was not sent
// until then never is, and the error is ErrNotSent. One that was sent goes on, and the error is
// ErrUnknown; its callbacks are not called any more, and its arguments must not be changed.
func (c *Committer) Commit(ctx context.Context, b *pgx.Batch) error { return c.CommitAs(ctx, "", b) }

// CommitAs is Commit for a tenant, which Options.SetTenant names first; "" for none.
func (c *Committer) CommitAs(ctx context.Context, tenant string, b *pgx.Batch) error {
	if b.Len() == 0 {
		return errNothingToCommit
	}
	timeout := c.options.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline)) //nolint:forbidigo // a context knows no other clock
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	return c.commit(newQueuedBatch(ctx, tenant, b), c.options.Writes.shares(b))
}

// commit queues a batch, and commits it with the others in the queue, or individually.
//
// If we die here: all batches of a transaction are durable or none is, as with commits of
// their own. Test: TestGroupCommit_reportsOutcomesThatAreTrueUnderFaults.
func (c *Committer) commit(q *queuedBatch, shares bool) error {
	err := errAlone
	if shares {
		_, err = c.shared.Do(q.ctx, q)
	}
	if errors.Is(err, errAlone) {
		q.taken.Store(false)
		_, err = c.single.Do(q.ctx, q)
	}
	if errors.Is(err, ErrNotReturned) || err != nil && err == q.ctx.Err() { //nolint:errorlint // unwrapped where there is no answer
		return q.leave(err)
	}
	return err
}

// abandonedTime is how long a commit whose connection was closed without an answer keeps its
// slot: the server may go on with it.
const abandonedTime = time.Minute

// lingers is how long a batch that was sent individually keeps its slot after the end of its call.
func lingers(batches []*queuedBatch) time.Duration {
	if batches[0].sending.Err() != nil { // its caller left during a callback
		return abandonedTime
	}
	return 0
}

// awaitAnswer goes first, so pgx waits for the server there and in no callback of a caller. The
// server sends the results of a transaction when it has ended, unless they have more than 8 kB.
const awaitAnswer = `-- groupcommit.awaitAnswer
select`

// sendOne sends a batch in its own transaction.
func (c *Committer) sendOne(conn *pgxpool.Conn, q *queuedBatch) error {
	b := &pgx.Batch{}
	switch {
	case q.tenant != "":
		c.options.SetTenant(b, q.tenant)
	case q.batch.QueuedQueries[0].Fn != nil:
		b.Queue(awaitAnswer)
	}
	b.QueuedQueries = append(b.QueuedQueries, q.batch.QueuedQueries...)
	err := c.send(q.sending, conn, b)
	if err == nil {
		c.committed(q)
	}
	return err
}

// committed reports what the batches of a commit wake.
func (c *Committer) committed(batches ...*queuedBatch) {
	if c.options.Committed == nil {
		return
	}
	if names := c.options.Writes.wakes(batches); len(names) > 0 {
		c.options.Committed(names)
	}
}

// send sends a transaction, and returns when the server has answered or the connection has ended.
func (c *Committer) send(ctx context.Context, conn *pgxpool.Conn, b *pgx.Batch) (err error) {
	if c.inFlight.Load() == 0 {
		c.confirm()
	}
	c.inFlight.Add(1)
	defer func() {
		if err == nil {
			c.confirm()
		}
		c.inFlight.Add(-1)
	}()
	// A deferred constraint refuses in Close, after the last Exec.
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
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

func (c *Committer) confirm() {
	c.confirmed.Store(time.Now().UnixMicro()) //nolint:forbidigo // it decides only what is reported
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

// commitTogether commits batches in one transaction, without those whose callers have left.
func (c *Committer) commitTogether(batches []*queuedBatch) error {
	ctx := batches[0].ctx
	if len(batches) > 1 { // a group commit is in the trace of none of its batches
		bounded, cancel := context.WithTimeout(context.Background(), c.options.Timeout)
		defer cancel()
		ctx = bounded
	}
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("%w: acquire a connection: %w", ErrNotCommitted, err)
	}
	defer conn.Release()
	all := slices.DeleteFunc(slices.Clone(batches), func(q *queuedBatch) bool { return !q.take() })
	switch len(all) {
	case 0:
		return nil // nothing receives it
	case 1:
		return c.sendOne(conn, all[0])
	}
	return c.sendGroup(conn, all)
}

// setLockTimeout ends with the transaction.
const setLockTimeout = `
-- groupcommit.setLockTimeout
select set_config('lock_timeout', $1, true)`

// sendGroup sends batches in one transaction. Only a transaction of its own refuses a batch.
func (c *Committer) sendGroup(conn *pgxpool.Conn, batches []*queuedBatch) error {
	// Each batch is in the trace of its caller, for as long as the group commit takes.
	var unknown error
	if c.tracer != nil {
		for _, q := range batches {
			traced := c.tracer.TraceBatchStart(q.ctx, conn.Conn(), pgx.TraceBatchStartData{Batch: q.batch})
			defer func() { c.tracer.TraceBatchEnd(traced, conn.Conn(), pgx.TraceBatchEndData{Err: unknown}) }()
		}
	}
	b := &pgx.Batch{}
	b.Queue(setLockTimeout, strconv.FormatInt(c.options.LockTimeout.Milliseconds(), 10))
	c.options.Writes.queueGroup(b, batches, c.options.SetTenant)
	err := c.send(context.Background(), conn, b)
	switch {
	case err == nil:
		c.commits.Add(1)
		c.batches.Add(int64(len(batches)))
		c.committed(batches...)
	case OutcomeOf(err) != Unknown:
		c.refusals.Add(1)
		return errAlone
	}
	unknown = err
	return err
}
