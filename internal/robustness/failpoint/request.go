package failpoint

import (
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// request is what the client has sent of one round trip.
type request struct {
	unsent   []byte
	prepared []string // SQL
	executed []string // names of statements
	executes int      // of a batch
	closes   bool
	synced   bool
}

// add adds a message. What cannot be decoded is forwarded, and the server refuses it.
func (r *request) add(c *conn, m []byte) {
	r.unsent = append(r.unsent, m...)
	body := m[5:]
	switch m[0] {
	case queryByte:
		var q pgproto3.Query
		_ = q.Decode(body)
		r.executed = append(r.executed, c.proxy.name(q.String))
	case parseByte:
		var p pgproto3.Parse
		_ = p.Decode(body)
		c.statements[p.Name] = p.Query
		r.prepared = append(r.prepared, p.Query)
	case bindByte:
		var b pgproto3.Bind
		_ = b.Decode(body)
		c.portals[b.DestinationPortal] = c.statements[b.PreparedStatement]
	case executeByte:
		var e pgproto3.Execute
		_ = e.Decode(body)
		r.executed = append(r.executed, c.proxy.name(c.portals[e.Portal]))
		r.executes++
	case closeByte:
		r.closes = true
	case functionByte:
		r.executed = append(r.executed, "function")
	case syncByte:
		r.synced = true
	}
}

// trip names the round trip.
func (r *request) trip(c *conn) *trip {
	t := &trip{kind: SQL, executes: r.executes, synced: r.synced}
	switch {
	case len(r.executed) > 0:
		t.name = batchName(r.executed)
		t.opens, t.closes = isControl(t.name)
		if t.opens || t.closes {
			t.name += c.sessionSuffix()
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

// isControl reports whether a statement's name is one of transaction control.
func isControl(name string) (opens, closes bool) {
	verb, _, _ := strings.Cut(name, " ")
	switch verb {
	case "begin", "start":
		return true, false
	case "commit", "rollback", "end", "abort":
		return false, true
	}
	return false, false
}

// prepares begins the names of round trips that only prepare statements.
const prepares = "prepare "

// preparation names a round trip that only prepares statements, by those that no
// connection of this life has prepared before: which connection does so first is
// chance. Which batch is the first to set something is chance too, so a query that
// sets something is no name.
func (c *conn) preparation(statements []string) (name string, minor bool) {
	names := func(statements []string) (names []string) {
		for _, sql := range statements {
			if name := c.proxy.name(sql); name != "select set_config" {
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
