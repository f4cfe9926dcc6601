package failpoint

import (
	"sync/atomic"
	"testing"
)

// Cutter stands between a test's pool and its PostgreSQL server and cuts a
// connection at a batch of the test's choice: before the server has it, or after
// the server has answered it and the answer is not delivered. So a test meets a
// commit whose outcome is unknown, in both of its truths. An armed cut happens
// once, at the first batch that fits. Nothing is left open when the test ends.
type Cutter struct {
	*Proxy
	plan *Plan
	last atomic.Bool
	cuts atomic.Int64
}

// StartCutter starts a cutter before the server of a connection string. It ends
// with the test.
func StartCutter(tb testing.TB, server string) *Cutter {
	tb.Helper()
	c, watch := &Cutter{}, NewWatch()
	c.plan = NewPlan(Aim{}, Known{}, func(Fault) {
		c.cuts.Add(1)
		if c.last.Load() {
			_ = c.listener.Close() // Close closes it a second time and ignores the error
		}
	})
	watch.Set(c.plan)
	var err error
	if c.Proxy, err = NewProxy(tb.Context(), server, watch); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// Arm cuts the connection that next sends a batch of at least so many statements:
// 0 for any batch, 1 for a query, 2 for a batch of two statements. A new
// connection's first queries are preceded by a batch without a statement, which
// prepares them.
func (c *Cutter) Arm(side Side, statements int) {
	c.plan.mu.Lock()
	defer c.plan.mu.Unlock()
	c.plan.aim, c.plan.fired = Aim{Side: side, Fault: Cut, Batch: &statements}, false
}

// ArmLast is Arm for a server that is lost with the connection: new connections
// are refused from then on.
func (c *Cutter) ArmLast(side Side, statements int) {
	c.last.Store(true)
	c.Arm(side, statements)
}

// Cuts is how many connections were cut at a batch.
func (c *Cutter) Cuts() int { return int(c.cuts.Load()) }
