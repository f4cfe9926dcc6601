package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A committer lets decisions that are made at the same moment share one commit:
// what a commit costs, the flush of the log above all, is then paid once for all of
// them. Who calls Commit cannot tell that it exists.
//
// It has a few lanes. Who finds one free commits at once and alone, as if there
// were no committer: nobody waits for company. Who finds none waits, and whoever has
// used a lane hands it to the first who waits. That one leads: it appends the
// statements of all the others who wait to its own, which makes one batch and so
// one transaction, and answers them when that is durable. There is no goroutine of
// its own, and nothing to close. Each batch that is appended is a unit.
//
// What keeps it exact:
//
//   - Nothing is answered before Close has told that the transaction is durable.
//   - A unit is refused by a commit of its own alone. When a shared transaction is
//     refused, nothing of it is durable and nobody is told: the unit that the
//     server refused goes once more by itself, and the others together. If it is
//     anybody's guess whose fault it was, as with what is checked at commit, each
//     goes by itself.
//   - When nobody can tell whether it was committed, no unit is told otherwise, and
//     none is sent again: only its caller knows by which key that is settled.
//   - A transaction that is shared sets one thing that a unit could see, its tenant,
//     and names it anew, or nobody, wherever the next statement is another tenant's.
//   - Units consist of the statements that lockOf knows. Whatever else is
//     committed, goes by itself: other settings, callbacks, locks of any other kind.
//   - One statement may have rows of several units. When such a one is refused,
//     nobody knows whose row it was: the same units are sent again, a statement for
//     each row, which tells.
//   - Rows that others lock as well are locked last, and in one order. Where that
//     does not help, a unit that waits for a lock makes the others wait only for
//     joinedLockTimeout, which ends before PostgreSQL looks for a deadlock; twice,
//     if it waits with a row of its own among those of others.
//
// Units of one stream, or under one key, may meet in one transaction: it is the same
// as one after the other, and the second is refused.
type committer struct {
	mu      sync.Mutex
	free    int     // lanes that nobody uses
	pending []*unit // in the order of their arrival; nobody while a lane is free
	shared  Shared
}

// Shared counts what was committed in company since the pool was opened.
type Shared struct {
	Commits  int64 // that several shared
	Units    int64 // that shared them
	Refusals int64 // after which some went by themselves
}

// Shared is how much was committed in company so far.
func (db *DB) Shared() Shared {
	if db.committer == nil {
		return Shared{}
	}
	db.committer.mu.Lock()
	defer db.committer.mu.Unlock()
	return db.committer.shared
}

// count notes what became of a transaction of n units.
func (c *committer) count(n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
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
	told   chan verdict // has room for one

	conn   *pgx.Conn       // on which it is traced
	traced context.Context // nil where it is not
}

// verdict is what a unit that waited is told, once.
type verdict struct {
	turn turn
	err  error
}

type turn int

const (
	answered  turn = iota // err is the answer
	leads                 // a lane is its own
	goesAlone             // nothing of it is durable: it commits by itself
)

// Bounds of one transaction. Readers of the outbox wait for the end of the oldest.
const (
	maxUnits      = 64
	maxStatements = 500
	maxRefusals   = 3 // then each goes by itself
)

const (
	// joinedLockTimeout is below PostgreSQL's deadlock_timeout of a second.
	joinedLockTimeout = 200 * time.Millisecond

	// laneTime is how long a transaction keeps others from the lane. What is held up,
	// by a lock or by the network, holds up nobody else for longer.
	laneTime = 250 * time.Millisecond
)

// commitJoined commits a unit in the company of others, if there are any.
//
// If we die here: all units of a transaction are there or none is, as with a commit
// of their own. Test: TestJoinedUnitsOfACutConnection.
func (db *DB) commitJoined(u *unit) error {
	c := db.committer
	v := verdict{turn: leads}
	if !c.takeLane(u) {
		select {
		case v = <-u.told:
		case <-u.ctx.Done():
			if c.withdraw(u) {
				return fmt.Errorf("%w: wait for a lane: %w", ErrNotCommitted, u.ctx.Err())
			}
			v = <-u.told // somebody has taken it along
		}
	}
	if v.turn == leads {
		db.lead(u)
		v = <-u.told
	}
	if v.turn == goesAlone {
		return db.commitAlone(u)
	}
	return v.err
}

// takeLane takes a free lane for a unit, or lets it wait.
func (c *committer) takeLane(u *unit) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.free > 0 {
		c.free--
		return true
	}
	c.pending = append(c.pending, u)
	return false
}

// handOver gives a lane to the first who waits.
func (c *committer) handOver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		c.free++
		return
	}
	c.pending[0].told <- verdict{turn: leads}
	c.pending = slices.Delete(c.pending, 0, 1)
}

// withdraw tells whether a unit still waited, and does no more.
func (c *committer) withdraw(u *unit) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.pending, u)
	if i < 0 {
		return false
	}
	c.pending = slices.Delete(c.pending, i, i+1)
	return true
}

// gather adds those who wait to a transaction.
func (c *committer) gather(units []*unit) []*unit {
	c.mu.Lock()
	defer c.mu.Unlock()
	statements, n := 0, 0
	for _, u := range units {
		statements += u.batch.Len()
	}
	for n < len(c.pending) && len(units)+n < maxUnits {
		statements += c.pending[n].batch.Len()
		if statements > maxStatements {
			break
		}
		n++
	}
	units = append(units, c.pending[:n]...)
	c.pending = slices.Delete(c.pending, 0, n)
	return units
}

// lead uses a lane: it tells first, and all whom it takes along, what became of
// them, and hands the lane over.
func (db *DB) lead(first *unit) {
	handOver := sync.OnceFunc(db.committer.handOver)
	defer handOver()
	defer time.AfterFunc(laneTime, handOver).Stop()
	units := []*unit{first}
	defer func() { tell(db.tracer, units, verdict{err: ErrUnknown}) }() // who is left after a panic
	tellAll := func(v verdict) {
		told := units
		units = nil
		tell(db.tracer, told, v)
	}

	conn, err := db.pool.Acquire(first.ctx)
	if err != nil {
		if first.ctx.Err() == nil { // else others may have the time
			units = db.committer.gather(units)
		}
		tellAll(verdict{err: notAcquired(err)})
		return
	}
	defer conn.Release()
	runtime.Gosched() // who is about to commit does so first, where processors are busy
	if units = db.committer.gather(units); len(units) == 1 {
		tellAll(verdict{err: first.send(conn)})
		return
	}

	// The trace of none of them: each has a part of its own.
	ctx, cancel := context.WithTimeout(context.Background(), commitDeadline)
	defer cancel()
	slices.SortStableFunc(units, byTenant)
	traceStart(db.tracer, conn.Conn(), units)
	rows := maxRows
	for refusals := 0; len(units) > 1 && refusals < maxRefusals; refusals++ {
		refused, err := db.sendJoined(ctx, conn, units, rows)
		if refused == several && !errors.Is(err, ErrUnknown) {
			rows = 1
			refused, err = db.sendJoined(ctx, conn, units, rows)
		}
		db.committer.count(len(units), err)
		switch {
		case err == nil || errors.Is(err, ErrUnknown):
			tellAll(verdict{err: err})
			return
		case refused < 0:
			tellAll(verdict{turn: goesAlone})
			return
		}
		poison := units[refused]
		units = slices.Delete(units, refused, refused+1)
		tell(db.tracer, []*unit{poison}, verdict{turn: goesAlone})
	}
	tellAll(verdict{turn: goesAlone})
}

// tell never waits: nobody is told twice. All of them are told, also if the tracer
// panics: who waits has nobody else to wake it.
func tell(tracer pgx.QueryTracer, units []*unit, v verdict) {
	defer func() {
		for _, u := range units {
			u.told <- v
		}
	}()
	for _, u := range units {
		traceEnd(tracer, u, v.err)
	}
}

// sendJoined commits units in one transaction, by statements of so many rows at most.
// Of one that was refused it tells which unit the server refused: nobodys if nobody
// can know, several if it was a row of one of several.
func (db *DB) sendJoined(ctx context.Context, conn *pgxpool.Conn, units []*unit, rows int) (refused int, err error) {
	b, of := join(units, db.joinedLockTimeout, rows)
	results := conn.SendBatch(ctx, b)
	refused = nobodys
	for i, q := range b.QueuedQueries {
		_, err := results.Exec()
		if _, unsent := errors.AsType[pgx.ErrPreprocessingBatch](err); unsent {
			break
		}
		if err != nil {
			if refused = of[i]; refused >= 0 {
				traceRefusal(db.tracer, units[refused], q.SQL, err)
			}
			break
		}
	}
	return refused, outcome(results.Close())
}
