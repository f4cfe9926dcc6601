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
//     it is durable: each half is sent as a transaction, and so on, down to single batches,
//     which are retried individually. After a wait that timed out that is each of them.
//   - When the outcome of the transaction is unknown, it is unknown for each batch, and none
//     is retried: its caller resolves it by its key.
//   - The tenant is set anew wherever the next statement is another tenant's.
//   - Only declared statements take part (see groupcommit.Order). Any other batch commits in
//     its own transaction: it may have other settings, callbacks and locks.
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
	groupcommit.Unit

	ctx context.Context // the caller's, with its trace and a deadline
}

// outcome of a unit in a group commit.
type outcome = groupcommit.Outcome[struct{}]

// commit commits a unit with others that are queued.
//
// If we die here: all units of a transaction are durable or none is, as with commits of
// their own. Test: TestGroupCommit_cutConnectionLeavesAllOrNothing.
func (c *committer) commit(u *unit) error {
	_, err := c.Do(u.ctx, u)
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
		statements += u.Batch.Len()
		if n > 0 && (n == maxUnits || statements > maxStatements) {
			return n
		}
	}
	return len(units)
}

func (c *committer) commitAll(_ context.Context, units []*unit) []outcome {
	if len(units) == 1 {
		return []outcome{{Err: c.db.commitAlone(units[0])}}
	}
	return c.commitTogether(units) //nolint:contextcheck // it ends with none of its callers
}

// commitTogether commits units in one transaction where possible.
func (c *committer) commitTogether(units []*unit) (outcomes []outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), c.db.commitTimeout)
	defer cancel()
	conn, err := c.db.pool.Acquire(ctx)
	if err != nil {
		return slices.Repeat([]outcome{{Err: notAcquired(err)}}, len(units))
	}
	defer conn.Release()
	// A group commit is in the trace of none of its units. Each has its own batch in its
	// caller's trace, for as long as the group commit takes.
	if t, ok := c.db.tracer.(pgx.BatchTracer); ok {
		for i, u := range units {
			traced := t.TraceBatchStart(u.ctx, conn.Conn(), pgx.TraceBatchStartData{Batch: u.Batch})
			defer func() { t.TraceBatchEnd(traced, conn.Conn(), pgx.TraceBatchEndData{Err: outcomes[i].Err}) }()
		}
	}
	return c.divide(ctx, conn, units)
}

// divide commits units in one transaction, or, when that is refused, each half of them. An
// outcome that is Alone asks the batcher for a commit of the unit's own.
func (c *committer) divide(ctx context.Context, conn *pgxpool.Conn, units []*unit) []outcome {
	if len(units) == 1 || conn.Conn().IsClosed() {
		return slices.Repeat([]outcome{{Alone: true}}, len(units))
	}
	err := c.send(ctx, conn, units)
	if err == nil || OutcomeOf(err) == Unknown {
		if err == nil {
			c.commits.Add(1)
			c.units.Add(int64(len(units)))
		}
		return slices.Repeat([]outcome{{Err: err}}, len(units))
	}
	c.refusals.Add(1)
	if OutcomeOf(err).MayPass() {
		return slices.Repeat([]outcome{{Alone: true}}, len(units))
	}
	half := len(units) / 2
	return append(c.divide(ctx, conn, units[:half]), c.divide(ctx, conn, units[half:])...)
}

// beginShared begins a group commit. Its settings end with the transaction.
const beginShared = `
select set_config('payonce.merchant', $1, true),
       set_config('lock_timeout', $2, true)`

// send commits units in one transaction.
func (c *committer) send(ctx context.Context, conn *pgxpool.Conn, units []*unit) error {
	sharing := make([]groupcommit.Unit, len(units))
	for i, u := range units {
		sharing[i] = u.Unit
	}
	return closeCommit(ctx, conn, conn.SendBatch(ctx, c.order.Join(sharing, c.setTenant)))
}

func (c *committer) setTenant(b *pgx.Batch, tenant string) {
	if b.Len() == 0 {
		b.Queue(beginShared, tenant, c.db.sharedLockTimeout)
	} else {
		QueueTenant(b, tenant)
	}
}
