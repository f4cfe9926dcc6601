package groupcommit

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pending is how many wait to be committed.
func (c *Committer) Pending() int {
	c.batcher.mu.Lock()
	defer c.batcher.mu.Unlock()
	return len(c.batcher.queue)
}

// Idle reports whether a group commit may begin at once.
func (c *Committer) Idle() bool {
	c.batcher.mu.Lock()
	defer c.batcher.mu.Unlock()
	return !c.batcher.busy
}

// holds are units that keep a slot until their channel is closed.
var holds sync.Map

type hold struct{ begun, end chan struct{} }

// HoldSlot keeps a shared commit in flight until it is released.
func (c *Committer) HoldSlot() (release func()) {
	if _, prepared := holds.LoadOrStore(c, true); !prepared {
		lead := c.batcher.Call
		c.batcher.NextAfter = cmp.Or(c.batcher.NextAfter, time.Hour)
		c.batcher.Call = func(ctx context.Context, units []*unit) []Result[struct{}] {
			if h, ok := holds.Load(units[0]); ok {
				its, _ := h.(hold)
				close(its.begun)
				<-its.end
				return make([]Result[struct{}], len(units))
			}
			return lead(ctx, units)
		}
	}
	u, h := &unit{Unit{Batch: &pgx.Batch{}}, context.Background()}, hold{make(chan struct{}), make(chan struct{})}
	holds.Store(u, h)
	go func() { _, _ = c.batcher.Do(u.ctx, u) }()
	<-h.begun
	return func() { holds.Delete(u); close(h.end) }
}

// SetHeld bounds how long a group commit holds up the next one. It is called before
// HoldSlot.
func (c *Committer) SetHeld(d time.Duration) { c.batcher.NextAfter = d }

// WaitForLocks lets a transaction of several units wait for a lock as long as the test
// holds it.
func (c *Committer) WaitForLocks() { c.options.LockTimeout = time.Hour }

// CommitWithin is Commit with the deadline of a context.
func (c *Committer) CommitWithin(ctx context.Context, b *pgx.Batch) error {
	return c.commitShared(&unit{Unit{Batch: b}, ctx})
}
