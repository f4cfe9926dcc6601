package crash

import "strings"

// request is what the client has sent of one round trip.
type request struct {
	unsent   []byte
	prepared []string // SQL
	executed []string // names of statements
	closes   bool
}

func (r *request) add(c *conn, m []byte) {
	r.unsent = append(r.unsent, m...)
	rest := m[5:]
	switch m[0] {
	case queryMessage:
		sql, _ := text(rest)
		r.executed = append(r.executed, c.proxy.name(sql))
	case parseMessage:
		name, rest := text(rest)
		sql, _ := text(rest)
		c.statements[name] = sql
		r.prepared = append(r.prepared, sql)
	case bindMessage:
		portal, rest := text(rest)
		statement, _ := text(rest)
		c.portals[portal] = c.statements[statement]
	case executeMessage:
		portal, _ := text(rest)
		r.executed = append(r.executed, c.proxy.name(c.portals[portal]))
	case closeMessage:
		r.closes = true
	case functionMessage:
		r.executed = append(r.executed, "function")
	}
}

// trip names the round trip.
func (r *request) trip(c *conn) *trip {
	t := &trip{kind: SQL}
	switch {
	case len(r.executed) > 0:
		t.name = batchName(r.executed)
		t.opens, t.closes = isControl(t.name)
		if t.opens || t.closes {
			t.name += c.ofSession()
		}
		if len(r.executed) == 1 && strings.HasPrefix(t.name, "set ") {
			// Every connection of a pool may begin with it.
			t.minor = len(c.plan.fresh([]string{string(r.unsent)})) == 0
		}
	case len(r.prepared) > 0:
		t.name, t.minor = c.preparation(r.prepared)
	case r.closes:
		t.name = "close"
	default:
		t.name = "sync"
	}
	if t.opens {
		c.group = &group{}
	}
	t.group = c.group
	return t
}

// preparation names a round trip that only prepares statements, by those that no
// connection of this life has prepared before: which one does is a pool's luck. And
// whose batch is the first to set something is luck too, so that is no name.
func (c *conn) preparation(statements []string) (name string, minor bool) {
	names := func(statements []string) (names []string) {
		for _, sql := range statements {
			if name := c.proxy.name(sql); name != setting {
				names = append(names, name)
			}
		}
		return names
	}
	fresh := names(c.plan.fresh(statements))
	if len(fresh) == 0 {
		return prepares + batchName(names(statements)), true
	}
	return prepares + batchName(fresh), false
}

// setting is the name of a query that sets something for its transaction.
const setting = "select set_config"
