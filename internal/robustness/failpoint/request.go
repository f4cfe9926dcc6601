package failpoint

import (
	"io"
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
	synced   bool // a batch: it ends with a Sync
}

// collector collects a client's messages into requests.
type collector struct {
	names      func(sql string) string
	statements map[string]string // SQL by name
	portals    map[string]string // SQL by name
	open       request
}

// next returns the next request, or an error when the client has ended.
func (c *collector) next(client *pgproto3.Backend) (request, error) {
	for {
		m, err := client.Receive()
		if err != nil {
			return request{}, err
		}
		r := &c.open
		r.unsent = encoded(r.unsent, m)
		whole := false
		switch m := m.(type) {
		case *pgproto3.Query:
			r.executed, whole = append(r.executed, c.names(m.String)), true
		case *pgproto3.Parse:
			c.statements[m.Name] = m.Query
			r.prepared = append(r.prepared, m.Query)
		case *pgproto3.Bind:
			c.portals[m.DestinationPortal] = c.statements[m.PreparedStatement]
		case *pgproto3.Execute:
			r.executed = append(r.executed, c.names(c.portals[m.Portal]))
			r.executes++
		case *pgproto3.Close:
			r.closes = true
		case *pgproto3.Sync:
			r.synced, whole = true, true
		case *pgproto3.CopyDone, *pgproto3.CopyFail:
			whole = true
		case *pgproto3.Terminate:
			return request{}, io.EOF
		}
		if whole {
			done := *r
			c.open = request{}
			return done, nil
		}
	}
}

// trip names the round trip.
func (r *request) trip(c *conn) *trip {
	t := &trip{kind: SQL, executes: r.executes}
	if !r.synced {
		t.executes = -1
	}
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
