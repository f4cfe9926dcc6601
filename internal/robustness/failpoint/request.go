package failpoint

import (
	"io"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// request is what the client has sent of one round trip.
type request struct {
	trip   *Trip
	unsent []byte
}

// collector collects a client's messages into requests.
type collector struct {
	session    *Session
	statements map[string]string // SQL by name
	portals    map[string]string // SQL by name
}

// next returns the next request, or an error when the client has ended.
func (c *collector) next(client *pgproto3.Backend) (request, error) {
	t := &Trip{Side: Before, Session: c.session, Statements: -1}
	executes, whole := 0, false
	var unsent []byte
	for !whole {
		m, err := client.Receive()
		if err != nil {
			return request{}, err
		}
		unsent = encoded(unsent, m)
		switch m := m.(type) {
		case *pgproto3.Query:
			t.Executed, whole = append(t.Executed, m.String), true
		case *pgproto3.Parse:
			c.statements[m.Name] = m.Query
			t.Prepared = append(t.Prepared, m.Query)
		case *pgproto3.Bind:
			c.portals[m.DestinationPortal] = c.statements[m.PreparedStatement]
		case *pgproto3.Execute:
			t.Executed = append(t.Executed, c.portals[m.Portal])
			executes++
		case *pgproto3.Sync:
			t.Statements, whole = executes, true
		case *pgproto3.Terminate:
			return request{}, io.EOF
		}
	}
	if len(t.Executed) == 1 {
		t.Opens, t.Closes = isControl(t.Executed[0])
	}
	return request{t, unsent}, nil
}

// isControl reports whether a statement is one of transaction control.
func isControl(sql string) (opens, closes bool) {
	verb, _, _ := strings.Cut(strings.ToLower(sql), " ")
	switch verb {
	case "begin", "start":
		return true, false
	case "commit", "rollback", "end", "abort":
		return false, true
	}
	return false, false
}
