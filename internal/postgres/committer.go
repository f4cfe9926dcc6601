package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
)

// A committer lets batches that are committed at the same moment share one commit. The
// caller of Commit cannot tell that it exists:
//
//   - Nothing is answered before Close has told that the transaction is durable.
//   - A batch is refused by a commit of its own alone. When a shared transaction is
//     refused, nothing of it is durable: the batch that the server refused is committed
//     again by itself, and the others together. Where nobody can know which batch it was,
//     as with what is checked at commit, each is committed by itself.
//   - When nobody can tell whether the transaction was committed, the outcome of each
//     batch is unknown, and none is sent again: its caller knows by which key that is
//     settled.
//   - A transaction that is shared sets the tenant anew wherever the next statement is
//     another tenant's, and nothing else that a batch could see.
//   - It consists of declared statements (see groupcommit.Order). Another batch is
//     committed by itself: other settings, callbacks, locks of any other kind.
//   - One statement may have rows of several batches. When it is refused, nobody knows
//     whose row it was: the same batches are sent again, a statement for each row.
//   - It waits for a lock no longer than sharedLockTimeout, which ends before PostgreSQL
//     looks for a deadlock.
//
// Batches of one stream, or under one key, may meet in one transaction: it is the same
// as one after the other, and the second is refused.
type committer struct {
	db    *DB
	order *groupcommit.Order
	*groupcommit.Batcher[*unit, struct{}]

	counting sync.Mutex
	shared   Shared
}

// Bounds of one transaction. Readers of the outbox wait for the end of the oldest.
const (
	maxUnits      = 64
	maxStatements = 500
	maxRefusals   = 3 // then each is committed by itself
)

func newCommitter(db *DB, order *groupcommit.Order, commits int) *committer {
	c := &committer{db: db, order: order}
	c.Batcher = &groupcommit.Batcher[*unit, struct{}]{Slots: commits, Fit: fit, Call: c.lead}
	return c
}

// Shared counts what was committed together since the pool was opened.
type Shared struct {
	Commits  int64 // that several batches shared
	Units    int64 // batches that shared them
	Refusals int64 // shared transactions that were refused
}

// Shared is how much was committed together so far.
func (db *DB) Shared() Shared {
	if db.committer == nil {
		return Shared{}
	}
	db.committer.counting.Lock()
	defer db.committer.counting.Unlock()
	return db.committer.shared
}

// count notes what became of a transaction of n units.
func (c *committer) count(n int, err error) {
	c.counting.Lock()
	defer c.counting.Unlock()
	switch {
	case err == nil:
		c.shared.Commits++
		c.shared.Units += int64(n)
	case !errors.Is(err, ErrUnknown):
		c.shared.Refusals++
	}
}

// unit is a batch of one caller.
type unit struct {
	ctx    context.Context // the caller's, with its trace and a deadline
	tenant string          // "" for nobody
	batch  *pgx.Batch

	conn   *pgx.Conn       // on which it is traced
	traced context.Context // nil where it is not
}

// commit commits a unit together with others, if there are any.
//
// If we die here: all units of a transaction are durable or none is, as with a commit
// of their own. Test: TestJoinedUnitsOfACutConnection.
func (c *committer) commit(u *unit) error {
	_, err := c.Do(u.ctx, u)
	traceEnd(c.db.tracer, u, err)
	switch {
	case errors.Is(err, groupcommit.ErrNotReturned):
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	case err != nil && err == u.ctx.Err(): //nolint:errorlint // it is returned as it is where the unit was still queued
		return fmt.Errorf("%w: wait for other commits: %w", ErrNotCommitted, err)
	}
	return err
}

// fit is how many units may be in one transaction.
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

type outcomes = []groupcommit.Outcome[struct{}]

// lead commits units, in one transaction where that is possible.
func (c *committer) lead(_ context.Context, units []*unit) outcomes {
	if len(units) == 1 {
		return outcomes{{Err: c.db.commitAlone(units[0])}}
	}
	// The trace of none of them: each has a part of its own.
	ctx, cancel := context.WithTimeout(context.Background(), c.db.commitTimeout)
	defer cancel()
	all := make(outcomes, len(units))
	left := make([]int, len(units)) // the places of those who share the transaction
	for i := range units {
		left[i] = i
	}
	conn, err := c.db.pool.Acquire(ctx) //nolint:contextcheck // as above
	if err != nil {
		for i := range all {
			all[i].Err = notAcquired(err)
		}
		return all
	}
	defer conn.Release()
	traceStart(c.db.tracer, conn.Conn(), units)
	for refusals := 0; len(left) > 1 && refusals < maxRefusals; refusals++ {
		refused, err := c.send(ctx, conn, units, left) //nolint:contextcheck // it ends with none of its callers
		c.count(len(left), err)
		switch {
		case err == nil || errors.Is(err, ErrUnknown):
			for _, i := range left {
				all[i].Err = err
			}
			return all
		case refused < 0:
			refusals = maxRefusals
		default:
			all[left[refused]].Alone = true
			left = append(left[:refused:refused], left[refused+1:]...)
		}
	}
	for _, i := range left {
		all[i].Alone = true
	}
	return all
}

// send commits some of the units in one transaction. Of one that was refused it returns
// the place among these of the unit that the server refused, negative if nobody can know.
func (c *committer) send(ctx context.Context, conn *pgxpool.Conn, units []*unit, left []int) (refused int, err error) {
	for _, rows := range []int{groupcommit.MaxRows, 1} {
		refused, err = c.sendRows(ctx, conn, units, left, rows)
		if refused != groupcommit.Several || errors.Is(err, ErrUnknown) {
			break
		}
	}
	return refused, err
}

// The first of these begins a shared transaction, and ends with it.
const (
	beginShared = `
select set_config('payonce.merchant', $1, true),
       set_config('lock_timeout', $2, true)`

	// Locally: it ends with the transaction, and so with the batch.
	setMerchant = `
select set_config('payonce.merchant', $1, true)`
)

func (c *committer) sendRows(ctx context.Context, conn *pgxpool.Conn, units []*unit, left []int, rows int) (refused int, err error) {
	sharing := make([]groupcommit.Unit, len(left))
	for n, i := range left {
		sharing[n] = groupcommit.Unit{Tenant: units[i].tenant, Batch: units[i].batch}
	}
	joined := c.order.Join(sharing, rows, func(b *pgx.Batch, tenant string) {
		if b.Len() == 0 {
			b.Queue(beginShared, tenant, c.db.sharedLockTimeout)
		} else {
			b.Queue(setMerchant, tenant)
		}
	})
	results := conn.SendBatch(ctx, joined.Batch)
	refused = groupcommit.Nobody
	for i, q := range joined.Batch.QueuedQueries {
		_, err := results.Exec()
		if _, unsent := errors.AsType[pgx.ErrPreprocessingBatch](err); unsent {
			break
		}
		if err != nil {
			if refused = joined.Of[i]; refused >= 0 {
				traceRefusal(c.db.tracer, units[left[refused]], q.SQL, err)
			}
			break
		}
	}
	return refused, outcome(closeCommit(ctx, conn, results))
}
