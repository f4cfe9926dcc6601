package failpoint

import (
	"sync"
	"testing"
)

// Cutter stands between a test's pool and its PostgreSQL server and cuts a
// connection at a batch of the test's choice: before the server has it, or after
// the server has answered it and the answer is not delivered. So a test meets a
// commit whose outcome is unknown, in both of its truths. An armed cut happens
// once, at the first Sync that fits. Nothing is left open when the test ends.
type Cutter struct {
	*Proxy
	memory

	mu       sync.Mutex
	armed    bool
	last     bool
	side     Side
	executes int
	cuts     int
}

// StartCutter starts a cutter before the server of a connection string. It ends
// with the test.
func StartCutter(tb testing.TB, server string) *Cutter {
	tb.Helper()
	c := &Cutter{}
	proxy, err := newProxy(tb.Context(), server, func() instrument { return c })
	if err != nil {
		tb.Fatal(err)
	}
	c.Proxy = proxy
	tb.Cleanup(c.Close)
	return c
}

// Arm cuts the connection that next sends a Sync after at least so many
// Executes: 0 for any Sync, 1 for a query, 2 for a batch of two statements. A
// new connection's first queries are preceded by a Sync without an Execute,
// which prepares them.
func (c *Cutter) Arm(side Side, executes int) { c.arm(side, executes, false) }

// ArmLast is Arm for a server that is lost with the connection: new connections
// are refused from then on.
func (c *Cutter) ArmLast(side Side, executes int) { c.arm(side, executes, true) }

func (c *Cutter) arm(side Side, executes int, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed, c.side, c.executes, c.last = true, side, executes, last
}

// Cuts is how many connections were cut at a Sync.
func (c *Cutter) Cuts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cuts
}

func (c *Cutter) before(t *trip) verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.armed || !t.synced || t.executes < c.executes {
		return pass
	}
	c.armed = false
	c.cuts++
	if c.last {
		_ = c.listener.Close() // Close closes it a second time and ignores the error
	}
	if c.side == Before {
		return drop
	}
	t.doomed = true
	return pass
}

func (c *Cutter) after(t *trip, _ int) verdict {
	if t.doomed {
		return drop
	}
	return pass
}
