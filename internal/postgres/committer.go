package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
)

// committer commits batches that arrive at the same moment as one transaction. A caller of
// Commit cannot tell the difference:
//
//   - It gets its result only after BatchResults.Close reports that the transaction
//     committed.
//   - Only a commit of its own refuses a batch. When a group commit is refused, nothing of
//     it is durable: the batch that the server refused is retried individually, and the
//     others together. Where the server does not say which batch it was, as for what it
//     checks at commit, each is retried individually.
//   - When the outcome of the transaction is unknown, it is unknown for each batch, and none
//     is retried: its caller resolves it by its key.
//   - The tenant is set anew wherever the next statement is another tenant's.
//   - Only declared statements take part (see groupcommit.Order). Any other batch commits in
//     its own transaction: it may have other settings, callbacks and locks.
//   - One statement may hold rows of several batches. When it is refused, the same batches
//     are sent again with one statement for each row, which shows whose row it was.
//   - A group commit waits for a lock no longer than sharedLockTimeout, which ends before
//     PostgreSQL looks for a deadlock.
//
// Batches of one stream or one key may meet in one transaction, with the same result as one
// after the other: the second is refused.
type committer struct {
	db    *DB
	order *groupcommit.Order
	*groupcommit.Batcher[*unit, struct{}]

	commits, units, refusals atomic.Int64
}

// Bounds of one group commit. Readers of the outbox wait for the end of the oldest.
const (
	maxUnits      = 64
	maxStatements = 500
	maxRefusals   = 3 // then each batch commits individually
)

func newCommitter(db *DB, order *groupcommit.Order) *committer {
	c := &committer{db: db, order: order}
	c.Batcher = &groupcommit.Batcher[*unit, struct{}]{Fit: fit, Call: c.commitAll}
	return c
}

// Shared counts group commits since the pool was opened.
type Shared struct {
	Commits  int64 // with several batches
	Units    int64 // batches in them
	Refusals int64 // group commits that were refused
}

// Shared returns the counts of group commits.
func (db *DB) Shared() Shared {
	c := db.committer
	if c == nil {
		return Shared{}
	}
	return Shared{c.commits.Load(), c.units.Load(), c.refusals.Load()}
}

// unit is a batch and its caller.
type unit struct {
	ctx     context.Context // the caller's, with its trace and a deadline
	tenant  string          // "" for none
	batch   *pgx.Batch
	outcome groupcommit.Outcome[struct{}] // of the last group commit

	// A group commit is in the trace of none of its batches. Each has a batch of its own in
	// its caller's trace, with its own statements, for as long as the group commit takes.
	conn   *pgx.Conn
	traced context.Context // nil without a trace
}

// commit commits a unit with others that are queued.
//
// If we die here: all units of a transaction are durable or none is, as with commits of
// their own. Test: TestGroupCommit_cutConnectionLeavesAllOrNothing.
func (c *committer) commit(u *unit) error {
	_, err := c.Do(u.ctx, u)
	if t, ok := c.db.tracer.(pgx.BatchTracer); ok && u.traced != nil {
		t.TraceBatchEnd(u.traced, u.conn, pgx.TraceBatchEndData{Err: err})
	}
	switch {
	case errors.Is(err, groupcommit.ErrNotReturned):
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
		statements += u.batch.Len()
		if n > 0 && (n == maxUnits || statements > maxStatements) {
			return n
		}
	}
	return len(units)
}

// commitAll commits units, in one transaction where possible. Units whose outcome is Alone
// come back one by one.
func (c *committer) commitAll(_ context.Context, units []*unit) []groupcommit.Outcome[struct{}] {
	if len(units) == 1 {
		units[0].outcome = groupcommit.Outcome[struct{}]{Err: c.db.commitAlone(units[0])}
	} else {
		c.commitTogether(slices.Clone(units)) //nolint:contextcheck // it ends with none of its callers
	}
	outcomes := make([]groupcommit.Outcome[struct{}], len(units))
	for i, u := range units {
		outcomes[i] = u.outcome
	}
	return outcomes
}

// commitTogether sets the outcome of each unit.
func (c *committer) commitTogether(units []*unit) {
	end := func(o groupcommit.Outcome[struct{}]) {
		for _, u := range units {
			u.outcome = o
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.db.commitTimeout)
	defer cancel()
	conn, err := c.db.pool.Acquire(ctx)
	if err != nil {
		end(groupcommit.Outcome[struct{}]{Err: notAcquired(err)})
		return
	}
	defer conn.Release()
	if t, ok := c.db.tracer.(pgx.BatchTracer); ok {
		for _, u := range units {
			u.conn, u.traced = conn.Conn(), t.TraceBatchStart(u.ctx, conn.Conn(), pgx.TraceBatchStartData{Batch: u.batch})
		}
	}
	for refusals := 0; len(units) > 1 && refusals < maxRefusals; refusals++ {
		refused, err := c.send(ctx, conn, units, false)
		if refused == groupcommit.Several && OutcomeOf(err) != Unknown {
			refused, err = c.send(ctx, conn, units, true)
		}
		if err == nil || OutcomeOf(err) == Unknown {
			if err == nil {
				c.commits.Add(1)
				c.units.Add(int64(len(units)))
			}
			end(groupcommit.Outcome[struct{}]{Err: err})
			return
		}
		c.refusals.Add(1)
		if refused < 0 {
			break
		}
		units[refused].outcome.Alone = true
		units = slices.Delete(units, refused, refused+1)
	}
	end(groupcommit.Outcome[struct{}]{Alone: true})
}

// beginShared begins a group commit. Its settings end with the transaction.
const beginShared = `
select set_config('payonce.merchant', $1, true),
       set_config('lock_timeout', $2, true)`

// send commits units in one transaction, if apart with one row in each statement. When the
// server refuses it, send returns the place of the unit that it refused, or one of
// groupcommit's owners below zero where the server does not say which.
func (c *committer) send(ctx context.Context, conn *pgxpool.Conn, units []*unit, apart bool) (refused int, err error) {
	sharing := make([]groupcommit.Unit, len(units))
	for i, u := range units {
		sharing[i] = groupcommit.Unit{Tenant: u.tenant, Batch: u.batch}
	}
	joined := c.order.Join(sharing, apart, c.setTenant)
	results := conn.SendBatch(ctx, joined.Batch)
	refused = groupcommit.Nobody
	for i, q := range joined.Batch.QueuedQueries {
		_, err := results.Exec()
		if err == nil {
			continue
		}
		// A batch that cannot be prepared has its error at the first statement, which belongs
		// to the transaction.
		if refused = joined.Of[i]; refused >= 0 {
			c.traceRefusal(units[refused], pgx.TraceBatchQueryData{SQL: q.SQL, Err: err})
		}
		break
	}
	return refused, closeCommit(ctx, conn, results)
}

func (c *committer) traceRefusal(u *unit, data pgx.TraceBatchQueryData) {
	if t, ok := c.db.tracer.(pgx.BatchTracer); ok {
		t.TraceBatchQuery(u.traced, u.conn, data)
	}
}

func (c *committer) setTenant(b *pgx.Batch, tenant string) {
	if b.Len() == 0 {
		b.Queue(beginShared, tenant, c.db.sharedLockTimeout)
	} else {
		QueueTenant(b, tenant)
	}
}
