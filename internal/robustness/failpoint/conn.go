package failpoint

import (
	"context"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// conn is one connection through the proxy, whose round trips a hook sees.
type conn struct {
	proxy   *Proxy
	hook    Hook
	client  net.Conn
	server  net.Conn
	answers <-chan message // of the server; closed with its connection
}

// message is what the server sends: one message, or all of an answer.
type message struct {
	text  []byte
	rows  int  // of the last command that is complete; else negative
	ready bool // ends an answer
	idle  bool // and no transaction is open after it
}

// encoded returns a message's bytes after those that are there.
func encoded(text []byte, m pgproto3.Message) []byte {
	text, err := m.Encode(text)
	if err != nil {
		panic(err) // only a message beyond 1 GiB cannot be encoded
	}
	return text
}

// serve runs the connection until one end is closed or it is cut.
func (c *conn) serve(ctx context.Context) {
	backend := pgproto3.NewBackend(c.client, c.client)
	first, err := backend.ReceiveStartupMessage()
	if err != nil {
		return
	}
	if c.server, err = c.proxy.dial(ctx); err != nil {
		return
	}
	defer c.proxy.drop(c.server)
	if startup, plain := first.(*pgproto3.StartupMessage); plain {
		c.session(backend, startup)
	}
}

// session runs the round trips of a session.
func (c *conn) session(backend *pgproto3.Backend, startup *pgproto3.StartupMessage) {
	var settings []string // in one order: drivers send them in any order
	for _, name := range slices.Sorted(maps.Keys(startup.Parameters)) {
		settings = append(settings, name+"="+startup.Parameters[name])
	}
	session := &Session{Settings: strings.Join(settings, "\n")}
	done := make(chan struct{})
	defer close(done)
	frontend := pgproto3.NewFrontend(c.server, c.server)
	c.answers = read(c, done, func() (message, error) { return receive(frontend) })
	if !c.roundTrip(request{&Trip{Side: Before, Session: session, Connects: true}, encoded(nil, startup)}) {
		return
	}
	collector := &collector{session: session, statements: map[string]string{}, portals: map[string]string{}}
	requests := read(c, done, func() (request, error) { return collector.next(backend) })
	for {
		select {
		case r, ok := <-requests:
			if !ok || !c.roundTrip(r) {
				return
			}
		case m, ok := <-c.answers: // unasked
			if !ok || !c.toClient(m.text) {
				return
			}
		}
	}
}

// read sends what next returns, until that fails or the reader's user has ended. An
// end that is gone takes the session with it, also while the server works.
func read[T any](c *conn, done <-chan struct{}, next func() (T, error)) <-chan T {
	all := make(chan T)
	c.proxy.serving.Go(func() {
		defer close(all)
		for {
			one, err := next()
			if err != nil {
				_ = c.server.Close()
				return
			}
			select {
			case all <- one:
			case <-done:
				return
			}
		}
	})
	return all
}

// receive reads a message of the server.
func receive(server *pgproto3.Frontend) (message, error) {
	m, err := server.Receive()
	if err != nil {
		return message{}, err
	}
	read := message{text: encoded(nil, m), rows: -1}
	switch m := m.(type) {
	case *pgproto3.CommandComplete:
		read.rows = int(pgconn.NewCommandTag(string(m.CommandTag)).RowsAffected())
	case *pgproto3.ReadyForQuery:
		read.ready, read.idle = true, m.TxStatus == 'I'
	}
	return read, nil
}

func (c *conn) toServer(m []byte) bool { _, err := c.server.Write(m); return err == nil }
func (c *conn) toClient(m []byte) bool { _, err := c.client.Write(m); return err == nil }

// roundTrip forwards one, unless the hook returns a fault. It reports whether the connection
// is still open.
func (c *conn) roundTrip(r request) bool {
	if fault := c.hook(r.trip); fault != None {
		return fault != Cut && c.refuse(r.trip, fault)
	}
	a, whole := c.exchange(r.unsent)
	if !whole {
		c.toClient(a.text) // the server has ended the session, and may have reported why
		return false
	}
	r.trip.Side, r.trip.Rows, r.trip.Idle = After, a.rows, a.idle
	switch c.hook(r.trip) {
	case None:
		return c.toClient(a.text)
	case Shutdown:
		c.toClient(shutdown())
	case Cut:
	}
	return false
}

// exchange sends the server a request and reads the whole answer. It is not whole if a
// connection ends.
func (c *conn) exchange(request []byte) (answer message, whole bool) {
	if !c.toServer(request) {
		return message{}, false
	}
	for m := range c.answers {
		m.text = append(answer.text, m.text...)
		if m.rows < 0 {
			m.rows = answer.rows
		}
		if answer = m; m.ready {
			return answer, true
		}
	}
	return answer, false
}

// refuse lets the server fail in place of the request, so the state of the
// transaction is what the client is answered. A commit that fails leaves none behind.
func (c *conn) refuse(t *Trip, fault Fault) bool {
	if fault == Shutdown {
		c.toClient(shutdown())
		return false
	}
	if t.Closes {
		if _, whole := c.query("rollback"); !whole {
			return false
		}
	}
	a, whole := c.query("do $$ begin raise exception using errcode = '" + string(fault) + "', message = 'planted between program and server'; end $$")
	return whole && c.toClient(a.text)
}

// query sends a statement of the proxy's own.
func (c *conn) query(sql string) (message, bool) {
	return c.exchange(encoded(nil, &pgproto3.Query{String: sql}))
}

// shutdown is how a server reports that it ends the session.
func shutdown() []byte {
	return encoded(nil, &pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: string(Shutdown),
		Message: "terminating connection due to administrator command",
	})
}
