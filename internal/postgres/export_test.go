package postgres

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

// Pending is how many wait to be committed.
func (db *DB) Pending() int { queued, _ := db.committer.Load(); return queued }

// Idle tells whether a group commit may begin at once.
func (db *DB) Idle() bool { _, busy := db.committer.Load(); return !busy }

// holds are units that keep a slot until their channel is closed.
var holds sync.Map

type hold struct{ begun, end chan struct{} }

// HoldSlot keeps a shared commit under way until it is released.
func (db *DB) HoldSlot() (release func()) {
	c := db.committer
	if _, prepared := holds.LoadOrStore(c, true); !prepared {
		lead := c.Call
		c.Held = cmp.Or(c.Held, time.Hour)
		c.Call = func(ctx context.Context, units []*unit) []groupcommit.Outcome[struct{}] {
			if h, ok := holds.Load(units[0]); ok {
				its, _ := h.(hold)
				close(its.begun)
				<-its.end
				return make([]groupcommit.Outcome[struct{}], len(units))
			}
			return lead(ctx, units)
		}
	}
	u, h := &unit{groupcommit.Unit{Batch: &pgx.Batch{}}, context.Background()}, hold{make(chan struct{}), make(chan struct{})}
	holds.Store(u, h)
	go func() { _, _ = c.Do(u.ctx, u) }()
	<-h.begun
	return func() { holds.Delete(u); close(h.end) }
}

// SetHeld bounds how long a group commit holds up the next one. It is called before
// HoldSlot.
func (db *DB) SetHeld(d time.Duration) { db.committer.Held = d }

// WaitForLocks lets a transaction of several units wait for a lock as long as the test
// holds it.
func (db *DB) WaitForLocks() { db.sharedLockTimeout = milliseconds(time.Hour) }

// CommitWithin is Commit with the deadline of a context.
func (db *DB) CommitWithin(ctx context.Context, b *pgx.Batch) error {
	return db.committer.commit(&unit{groupcommit.Unit{Batch: b}, ctx})
}
