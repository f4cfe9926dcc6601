package failpoint

import (
	"sync"
	"testing"
)

// Cutter stands between a test's pool and its PostgreSQL server and cuts a
// connection at a batch of the test's choice: before the server has it, or after
// the server has answered it and the answer is not delivered. So a test meets a
// commit whose outcome is unknown, in both of its truths. An armed cut happens
// once, at the first batch that fits. Nothing is left open when the test ends.
type Cutter struct {
	*Proxy

	mu         sync.Mutex
	armed      bool
	side       Side
	statements int
	last       bool
	aimed      *Trip // that fits
	cuts       int
}

// StartCutter starts a cutter before the server of a connection string. It ends
// with the test.
func StartCutter(tb testing.TB, server string) *Cutter {
	tb.Helper()
	c := &Cutter{}
	var err error
	if c.Proxy, err = NewProxy(tb.Context(), server, func() Hook { return c }); err != nil {
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
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed, c.side, c.statements = true, side, statements
}

// ArmLast is Arm for a server that is lost with the connection: new connections
// are refused from then on.
func (c *Cutter) ArmLast(side Side, statements int) {
	c.Arm(side, statements)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = true
}

// Cuts is how many connections were cut at a batch.
func (c *Cutter) Cuts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cuts
}

// Before cuts a batch that fits, if that is the side, or remembers it for After.
func (c *Cutter) Before(t *Trip) Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.armed || t.Statements < c.statements {
		return None
	}
	c.armed, c.aimed = false, t
	return c.cut(t, Before)
}

// After cuts the batch that Before has remembered.
func (c *Cutter) After(t *Trip) Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut(t, After)
}

func (c *Cutter) cut(t *Trip, side Side) Fault {
	if t != c.aimed || side != c.side {
		return None
	}
	c.aimed = nil
	c.cuts++
	if c.last {
		_ = c.listener.Close() // Close closes it a second time and ignores the error
	}
	return Cut
}
