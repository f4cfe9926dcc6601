package failpoint

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// conn is one connection through the proxy.
type conn struct {
	proxy    *Proxy
	hook     Hook
	session  *Session
	client   net.Conn
	server   net.Conn
	backend  *pgproto3.Backend  // reads the client
	frontend *pgproto3.Frontend // reads the server

	requests  <-chan request // of the client; closed with its connection
	responses <-chan message // of the server; closed with its connection
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

// shutdown is how a server reports that it ends the session.
func shutdown() []byte {
	return encoded(nil, &pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: string(Shutdown),
		Message: "terminating connection due to administrator command",
	})
}

// serve runs the connection until one end is closed or it is cut.
func (c *conn) serve(ctx context.Context) {
	c.backend = pgproto3.NewBackend(c.client, c.client)
	startup, err := c.startup(ctx)
	if err != nil || startup == nil {
		return
	}
	if c.server, err = c.proxy.dial(ctx); err != nil {
		return
	}
	defer c.proxy.drop(c.server)
	c.frontend = pgproto3.NewFrontend(c.server, c.server)
	if !c.connect(startup) {
		return
	}
	done := make(chan struct{})
	defer close(done)
	collector := &collector{session: c.session, statements: map[string]string{}, portals: map[string]string{}}
	c.requests = read(c, done, func() (request, error) { return collector.next(c.backend) })
	c.responses = read(c, done, c.receive)
	for {
		if r, ok := c.next(); !ok || !c.roundTrip(r) {
			return
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
func (c *conn) receive() (message, error) {
	m, err := c.frontend.Receive()
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

// startup returns the client's startup message, or nil for a cancel request.
func (c *conn) startup(ctx context.Context) (*pgproto3.StartupMessage, error) {
	m, err := c.backend.ReceiveStartupMessage()
	if err != nil {
		return nil, err
	}
	switch m := m.(type) {
	case *pgproto3.StartupMessage:
		return m, nil
	case *pgproto3.CancelRequest:
		return nil, c.forwardCancel(ctx, m)
	}
	return nil, net.ErrClosed // a client that asks for encryption is cut off
}

func (c *conn) forwardCancel(ctx context.Context, m *pgproto3.CancelRequest) error {
	server, err := c.proxy.dial(ctx)
	if err != nil {
		return err
	}
	defer c.proxy.drop(server)
	if _, err := server.Write(encoded(nil, m)); err != nil {
		return fmt.Errorf("forward a cancel request: %w", err)
	}
	_, _ = io.Copy(io.Discard, server) // the server closes the connection when it has read the request
	return nil
}

// connect is the round trip that begins the session. An exchange of passwords is
// part of it.
func (c *conn) connect(startup *pgproto3.StartupMessage) bool {
	var settings []string // in one order: drivers send them in any order
	for _, name := range slices.Sorted(maps.Keys(startup.Parameters)) {
		settings = append(settings, name+"="+startup.Parameters[name])
	}
	c.session = &Session{Settings: strings.Join(settings, "\n")}
	t := &Trip{Session: c.session, Connects: true}
	if c.hook.Before(t) != None || !c.toServer(encoded(nil, startup)) {
		return false
	}
	var answer []byte
	for {
		m, err := c.receive()
		if err != nil {
			c.toClient(answer) // a refusal
			return false
		}
		answer = append(answer, m.text...)
		if m.ready {
			t.Idle = true
			return c.hook.After(t) == None && c.toClient(answer)
		}
		if kind, asks := asksForPassword(m.text); asks {
			if !c.toClient(answer) || c.backend.SetAuthType(kind) != nil {
				return false
			}
			answer = nil
			password, err := c.backend.Receive()
			if err != nil || !c.toServer(encoded(nil, password)) {
				return false
			}
		}
	}
}

func asksForPassword(text []byte) (kind uint32, asks bool) {
	if text[0] != 'R' {
		return 0, false
	}
	kind = binary.BigEndian.Uint32(text[5:])
	return kind, kind != pgproto3.AuthTypeOk && kind != pgproto3.AuthTypeSASLFinal
}

func (c *conn) toServer(m []byte) bool { _, err := c.server.Write(m); return err == nil }
func (c *conn) toClient(m []byte) bool { _, err := c.client.Write(m); return err == nil }

// next is the client's next request. Until it comes, the server's messages are
// forwarded.
func (c *conn) next() (request, bool) {
	for {
		select {
		case r, ok := <-c.requests:
			return r, ok
		case m, ok := <-c.responses:
			if !ok || !c.toClient(m.text) {
				return request{}, false
			}
		}
	}
}

// roundTrip forwards one, unless the hook returns a fault. It reports whether the connection
// is still open.
func (c *conn) roundTrip(r request) bool {
	switch fault := c.hook.Before(r.trip); fault {
	case None:
	case Cut:
		return false
	default:
		return c.refuse(r.trip, fault)
	}
	a, whole := c.exchange(r.unsent)
	if !whole {
		c.toClient(a.text) // the server has ended the session, and may have reported why
		return false
	}
	r.trip.Rows, r.trip.Idle = a.rows, a.idle
	switch c.hook.After(r.trip) {
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
	for m := range c.responses {
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
