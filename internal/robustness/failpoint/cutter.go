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

	mu    sync.Mutex
	side  Side  // "" unless armed
	least int   // statements
	aimed *Trip // the first one that fits
	cuts  int
}

// StartCutter starts a cutter before the server of a connection string. It ends
// with the test.
func StartCutter(tb testing.TB, server string) *Cutter {
	tb.Helper()
	c := &Cutter{}
	var err error
	if c.Proxy, err = NewProxy(tb.Context(), server, func() Hook { return c.hook }); err != nil {
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
	c.side, c.least, c.aimed = side, statements, nil
}

// Cuts is how many connections were cut at a batch.
func (c *Cutter) Cuts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cuts
}

func (c *Cutter) hook(t *Trip) Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.side != "" && c.aimed == nil && t.Side == Before && t.Statements >= c.least {
		c.aimed = t
	}
	if t != c.aimed || t.Side != c.side {
		return None
	}
	c.side, c.aimed = "", nil
	c.cuts++
	return Cut
}
