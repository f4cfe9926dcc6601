package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// EndHalfSentAfter is EndHalfSent with a patience that a test can bear.
var EndHalfSentAfter = endHalfSentAfter //nolint:gochecknoglobals // exported to tests only

// Pending is how many wait for a lane.
func (db *DB) Pending() int {
	return db.committer.Pending()
}

// HoldLane keeps a lane in use, so that whoever commits waits until it is released.
func (db *DB) HoldLane() (release func()) {
	u := &unit{batch: &pgx.Batch{}, told: make(chan verdict, 1)}
	db.committer.join(u)
	<-u.told // that it leads
	return db.committer.use(1, time.Hour)
}

// WaitForLocks lets a transaction of several units wait for a lock as long as the test
// holds it.
func (db *DB) WaitForLocks() { db.joinedLockTimeout = milliseconds(time.Hour) }

// FreeLanes is how many nobody uses.
func (db *DB) FreeLanes() int {
	return db.committer.Unused()
}

// CommitWithin is Commit with the deadline of a context.
func (db *DB) CommitWithin(ctx context.Context, b *pgx.Batch) error {
	u := &unit{ctx: ctx, batch: b, told: make(chan verdict, 1)}
	if !u.joins() {
		return errors.New("it is for what joins")
	}
	return db.commitJoined(u)
}

// Joins tells whether a statement may be in a transaction with others.
func Joins(q *pgx.QueuedQuery) bool {
	_, known := statementOf(q, "")
	return known
}

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
	return g.lanes.Pending()
}

// LaneIsFree tells whether nobody uses it.
func (g *Gatherer[Q, A]) LaneIsFree() bool {
	return g.lanes.Unused() == 1
}

// StandStillFor is how long a read that stands still holds the lane.
func (g *Gatherer[Q, A]) StandStillFor(d time.Duration) { g.laneTime = d }

// Pending is how many wait.
func (l *lanes[W]) Pending() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// Enough is how many that wait use the second lane.
func (db *DB) Enough() int { return db.committer.enough }

// Took is how long many who committed together took last: times were busy then.
func (db *DB) Took() time.Duration {
	db.committer.mu.Lock()
	defer db.committer.mu.Unlock()
	return db.committer.took
}

// Stays are how long a commit and a read stay for others at most, and how many
// questions are enough.
func Stays() (commit, read time.Duration, questions int) {
	g := NewGatherer(1, func(context.Context, []int) ([]int, error) { return nil, nil })
	return newCommitter(1, 1).longest, g.lanes.longest, g.lanes.enough
}

// Unused is how many lanes are free.
func (l *lanes[W]) Unused() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.free
}

// Lanes are those of commits and of reads.
type Lanes[W comparable] struct{ lanes[W] }

// OpenLanes makes lanes by themselves.
func OpenLanes[W comparable](n, enough int, longest time.Duration, fit func([]W) int, lead func([]W)) *Lanes[W] {
	l := &Lanes[W]{lanes[W]{enough: enough, longest: longest, fit: fit, lead: lead}}
	l.open(n)
	return l
}

// Join lets them come, one after another.
func (l *Lanes[W]) Join(all ...W) {
	for _, w := range all {
		l.join(w)
	}
}

// HandOver gives a lane back that so many have used for so long.
func (l *Lanes[W]) HandOver(together int, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handOver(together, took)
}

// Use begins what so many do in a lane.
func (l *Lanes[W]) Use(together int, most time.Duration) (handOver func()) {
	return l.use(together, most)
}

// Times are busy for so long behind so many.
const (
	BusyMany = busyMany
	BusyTime = busyTime
)

// SlowAfter is how long others keep from the second lane for the sake of the first.
const SlowAfter = slowAfter

// Withdraw tells whether w still waited.
func (l *Lanes[W]) Withdraw(w W) bool { return l.withdraw(w) }

// HoldLane keeps the lane in use, so that whoever asks waits until it is released.
func (g *Gatherer[Q, A]) HoldLane() (release func()) {
	a := &asked[Q, A]{heard: make(chan told[Q, A], 1)}
	g.lanes.join(a)
	<-a.heard // that it leads
	return g.lanes.use(1, time.Hour)
}
