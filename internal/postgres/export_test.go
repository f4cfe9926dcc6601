package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// EndHalfSentAfter is EndHalfSent with a patience that a test can bear.
var EndHalfSentAfter = endHalfSentAfter //nolint:gochecknoglobals // exported to tests only

// Pending is how many wait for a lane.
func (db *DB) Pending() int {
	db.committer.mu.Lock()
	defer db.committer.mu.Unlock()
	return len(db.committer.pending)
}

// HoldLane keeps a lane in use, so that whoever commits waits until it is released.
func (db *DB) HoldLane() (release func()) {
	db.committer.takeLane(&unit{})
	return db.committer.handOver
}

// FreeLanes is how many nobody uses.
func (db *DB) FreeLanes() int {
	db.committer.mu.Lock()
	defer db.committer.mu.Unlock()
	return db.committer.free
}

// CommitWithin is Commit with the deadline of a context.
func (db *DB) CommitWithin(ctx context.Context, b *pgx.Batch) error {
	return db.commitJoined(&unit{ctx: ctx, batch: b, told: make(chan verdict, 1)})
}

// Joins tells whether a statement may be in a transaction with others.
func Joins(q *pgx.QueuedQuery) bool { return joins(&pgx.Batch{QueuedQueries: []*pgx.QueuedQuery{q}}) }

// IsOrdered tells whether a statement is moved behind the others' for its lock.
func IsOrdered(q *pgx.QueuedQuery) bool {
	l, known := lockOf(q)
	return known && l.table != noTable
}

// IsForSeveral tells whether a text does for rows what others do for the one that they
// lock.
func IsForSeveral(q *pgx.QueuedQuery) bool {
	row, end := rowOf(statement{many: q.SQL, arguments: q.Arguments})
	return row != "" && end != ""
}

// Waiting is how many wait for the lane.
func (g *Gatherer[Q, A]) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}

// LaneIsFree tells whether nobody uses it.
func (g *Gatherer[Q, A]) LaneIsFree() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.used
}

// StandStillFor is how long a read that stands still holds the lane.
func (g *Gatherer[Q, A]) StandStillFor(d time.Duration) { g.laneTime = d }
