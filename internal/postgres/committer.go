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
// Who commits alone does so at once, as if there were no committer. Who comes while
// others commit, or in busy times, may wait for company (see lanes). The first of those who
// wait leads: it appends the statements of all the others to its own, which makes one
// batch and so one transaction, and answers them when that is durable. Each batch that is
// appended is a unit.
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
	*lanes[*unit]

	counting sync.Mutex
	shared   Shared
}

func newCommitter(n, enough int) *committer {
	l := &lanes[*unit]{
		enough: enough, longest: commitStay, fit: fit,
		lead: func(units []*unit) { units[0].told <- verdict{turn: leads, units: units} },
	}
	return &committer{lanes: l.open(n)}
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
	told   chan verdict // has room for one

	statements []statement // of the batch, where they may be in a transaction with others

	conn   *pgx.Conn       // on which it is traced
	traced context.Context // nil where it is not
}

// joins tells whether a unit may be in a transaction with others, and reads its
// statements for that.
func (u *unit) joins() bool {
	u.statements = make([]statement, 0, u.batch.Len())
	for _, q := range u.batch.QueuedQueries {
		s, known := statementOf(q, u.tenant)
		if !known {
			return false
		}
		u.statements = append(u.statements, s)
	}
	return true
}

// verdict is what a unit that waited is told, once.
type verdict struct {
	turn  turn
	err   error
	units []*unit // of one that leads, itself the first
}

type turn int

const (
	answered  turn = iota // err is the answer
	leads                 // a lane is its own, and it commits for all of its units
	goesAlone             // nothing of it is durable: it commits by itself
	asksAgain             // nothing of it was sent: it waits for a lane again
)

// Bounds of one transaction. Readers of the outbox wait for the end of the oldest.
const (
	maxUnits      = 64
	maxStatements = 500
	maxRefusals   = 3 // then each goes by itself

	enoughUnits = 2 * maxRows           // unless Options.Enough is set: they fill statements
	commitStay  = 20 * time.Millisecond // in busy times, at most
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
	runtime.Gosched() // who is about to commit comes first, where processors are busy
	c.join(u)
	var v verdict
	select {
	case v = <-u.told:
	case <-u.ctx.Done():
		if c.withdraw(u) {
			return fmt.Errorf("%w: wait for a lane: %w", ErrNotCommitted, u.ctx.Err())
		}
		v = <-u.told // somebody has taken it along
	}
	if v.turn == leads {
		db.lead(v.units)
		v = <-u.told
	}
	switch {
	case v.turn == asksAgain && u.ctx.Err() == nil:
		return db.commitJoined(u)
	case v.turn != answered:
		return db.commitAlone(u)
	}
	return v.err
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

// lead uses a lane: it tells all units, the first and those whom it takes along, what
// became of them, and hands the lane over.
func (db *DB) lead(units []*unit) {
	together := len(units)
	defer db.committer.use(together, laneTime)()
	defer func() { tell(db.tracer, units, verdict{err: ErrUnknown}) }() // who is left after a panic
	tellAll := func(v verdict) {
		told := units
		units = nil
		tell(db.tracer, told, v)
	}
	if together == 1 {
		tellAll(verdict{err: db.commitAlone(units[0])})
		return
	}
	first := units[0]
	conn, err := db.pool.Acquire(first.ctx)
	if err != nil {
		if first.ctx.Err() != nil { // the others may have the time
			units = units[1:]
			tell(db.tracer, []*unit{first}, verdict{err: notAcquired(err)})
			tellAll(verdict{turn: asksAgain})
			return
		}
		tellAll(verdict{err: notAcquired(err)})
		return
	}
	defer conn.Release()
	// The trace of none of them: each has a part of its own.
	ctx, cancel := context.WithTimeout(context.Background(), db.commitTimeout)
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
	return refused, outcome(closeCommit(ctx, conn, results))
}
