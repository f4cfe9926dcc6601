package groupcommit

import "time"

// Pending is how many wait to be committed.
func (c *Committer) Pending() int {
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	return len(c.shared.queue)
}

// HoldCommits takes all slots, so that batches queue until they are released.
func (c *Committer) HoldCommits() (release func()) {
	for range cap(c.shared.Slots) {
		c.shared.Slots <- struct{}{}
	}
	return func() {
		for range cap(c.shared.Slots) {
			<-c.shared.Slots
		}
	}
}

// WaitForLocks lets a transaction of several batches wait for a lock as long as the test
// holds it.
func (c *Committer) WaitForLocks() { c.options.LockTimeout = time.Hour }
