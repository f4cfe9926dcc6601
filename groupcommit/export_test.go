package groupcommit

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// Pending is how many wait to be committed.
func (c *Committer) Pending() int {
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	return len(c.shared.queue)
}

// Idle reports whether a group commit may begin at once.
func (c *Committer) Idle() bool {
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	return !c.shared.runs
}

// holds are batches whose commit does not end until their channel is closed.
var holds sync.Map

type hold struct{ begun, end chan struct{} }

// HoldCommit keeps a group commit in flight until it is released.
func (c *Committer) HoldCommit() (release func()) {
	if _, prepared := holds.LoadOrStore(c, true); !prepared {
		for !c.Idle() { // soon: what was committed before has returned
			runtime.Gosched()
		}
		lead := c.shared.Call
		c.shared.nextAfter = time.Hour
		c.shared.Call = func(ctx context.Context, batches []*queuedBatch) []Result[struct{}] {
			if h, ok := holds.Load(batches[0]); ok {
				its, _ := h.(hold)
				close(its.begun)
				<-its.end
				return make([]Result[struct{}], len(batches))
			}
			return lead(ctx, batches)
		}
	}
	u, h := &queuedBatch{ctx: context.Background()}, hold{make(chan struct{}), make(chan struct{})}
	holds.Store(u, h)
	go func() { _, _ = c.shared.Do(u.ctx, u) }()
	<-h.begun
	return func() { holds.Delete(u); close(h.end) }
}

// WaitForLocks lets a transaction of several batches wait for a lock as long as the test
// holds it.
func (c *Committer) WaitForLocks() { c.options.LockTimeout = time.Hour }
