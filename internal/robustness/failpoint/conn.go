package failpoint

import (
	"context"
	"encoding/binary"
	"errors"
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
	proxy  *Proxy
	plan   instrument
	client net.Conn
	server net.Conn

	requests  <-chan []byte // messages of the client; closed with its connection
	responses <-chan []byte // messages of the server; closed with its connection

	kind       int               // of session
	statements map[string]string // SQL by name
	portals    map[string]string // SQL by name
	group      *group            // the open transaction; nil if none
	early      [][]byte          // what the client sent before it was answered
}

// The first bytes of messages that the proxy acts on. Client and server use the
// same bytes for different messages.
const (
	queryByte, parseByte, bindByte, executeByte, closeByte        = 'Q', 'P', 'B', 'E', 'C'
	syncByte, flushByte, functionByte, copyDoneByte, copyFailByte = 'S', 'H', 'F', 'c', 'f'
	terminateByte                                                 = 'X'

	authenticationByte, commandCompleteByte, readyByte, copyInByte = 'R', 'C', 'Z', 'G'
)

// What a client may send in place of its startup message.
const (
	cancelRequest = 80877102
	sslRequest    = 80877103
	gssRequest    = 80877104
)

// longestMessage is far above what a program sends: a longer one is no message of
// the protocol.
const longestMessage = 64 << 20

var errNoMessage = errors.New("not a message of the PostgreSQL protocol")

// readMessage reads the bytes of one message: its type, which a startup message
// lacks, a length that counts itself, and the rest.
func readMessage(r io.Reader, typeBytes int) ([]byte, error) {
	head := make([]byte, typeBytes+4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("read the head of a message: %w", err)
	}
	length := binary.BigEndian.Uint32(head[typeBytes:])
	if length < 4 || length > longestMessage {
		return nil, errNoMessage
	}
	message := make([]byte, typeBytes+int(length))
	copy(message, head)
	if _, err := io.ReadFull(r, message[len(head):]); err != nil {
		return nil, fmt.Errorf("read a message: %w", err)
	}
	return message, nil
}

// encoded is a message of the proxy itself.
func encoded(m pgproto3.Message) []byte {
	text, err := m.Encode(nil)
	if err != nil {
		panic(err) // only a message beyond 1 GiB cannot be encoded
	}
	return text
}

// shutdown is how a server reports that it ends the session.
func shutdown() []byte {
	return encoded(&pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: string(Shutdown),
		Message: "terminating connection due to administrator command",
	})
}

// serve runs the connection until one end is closed or it is cut.
func (c *conn) serve(ctx context.Context) {
	startup, err := c.startup(ctx)
	if err != nil || startup == nil {
		return
	}
	if c.server, err = c.proxy.dial(ctx); err != nil {
		return
	}
	defer c.proxy.drop(c.server)
	done := make(chan struct{})
	defer close(done)
	c.requests = c.read(c.client, done)
	c.responses = c.read(c.server, done)
	if c.connect(startup) {
		c.forward()
	}
}

// read sends whole messages until the connection or its user ends.
func (c *conn) read(from net.Conn, done <-chan struct{}) <-chan []byte {
	messages := make(chan []byte)
	c.proxy.serving.Go(func() {
		defer close(messages)
		for {
			m, err := readMessage(from, 1)
			if err != nil {
				return
			}
			select {
			case messages <- m:
			case <-done:
				return
			}
		}
	})
	return messages
}

// startup returns the client's startup message, or nil for a cancel request.
func (c *conn) startup(ctx context.Context) ([]byte, error) {
	for {
		m, err := readMessage(c.client, 0)
		if err != nil {
			return nil, err
		}
		if len(m) < 8 {
			return nil, errNoMessage
		}
		switch binary.BigEndian.Uint32(m[4:]) {
		case sslRequest, gssRequest:
			if _, err := c.client.Write([]byte{'N'}); err != nil {
				return nil, fmt.Errorf("refuse encryption: %w", err)
			}
		case cancelRequest:
			return nil, c.forwardCancel(ctx, m)
		default:
			return m, nil
		}
	}
}

func (c *conn) forwardCancel(ctx context.Context, m []byte) error {
	server, err := c.proxy.dial(ctx)
	if err != nil {
		return err
	}
	defer c.proxy.drop(server)
	if _, err := server.Write(m); err != nil {
		return fmt.Errorf("forward a cancel request: %w", err)
	}
	_, _ = io.Copy(io.Discard, server) // the server closes the connection when it has read the request
	return nil
}

// connect is the round trip that begins the session. An exchange of passwords is
// part of it.
func (c *conn) connect(startup []byte) bool {
	t := &trip{name: "connect", kind: Connect}
	var first bool
	c.kind, first = c.plan.session(settingsOf(startup))
	t.minor = !first
	t.name += c.sessionSuffix()
	if c.plan.before(t) == drop || !c.toServer(startup) {
		return false
	}
	var answer []byte
	for m := range c.responses {
		answer = append(answer, m...)
		switch {
		case m[0] == authenticationByte && asksForPassword(m):
			if !c.toClient(answer) {
				return false
			}
			answer = nil
			password, ok := <-c.requests
			if !ok || !c.toServer(password) {
				return false
			}
		case m[0] == readyByte:
			return c.plan.after(t, 0) != drop && c.toClient(answer)
		}
	}
	c.toClient(answer) // a refusal
	return false
}

// settingsOf are a startup message's settings in one order: drivers send them in
// any order.
func settingsOf(startup []byte) string {
	var m pgproto3.StartupMessage
	if m.Decode(startup[4:]) != nil {
		return string(startup)
	}
	var settings []string
	for _, name := range slices.Sorted(maps.Keys(m.Parameters)) {
		settings = append(settings, name+"="+m.Parameters[name])
	}
	return strings.Join(settings, "\n")
}

func asksForPassword(m []byte) bool {
	if len(m) < 9 {
		return false
	}
	kind := binary.BigEndian.Uint32(m[5:])
	return kind != pgproto3.AuthTypeOk && kind != pgproto3.AuthTypeSASLFinal
}

// sessionSuffix distinguishes the further kinds of sessions from the first.
func (c *conn) sessionSuffix() string {
	if c.kind <= 1 {
		return ""
	}
	return fmt.Sprintf(" (session %d)", c.kind)
}

func (c *conn) toServer(m []byte) bool { _, err := c.server.Write(m); return err == nil }
func (c *conn) toClient(m []byte) bool { _, err := c.client.Write(m); return err == nil }

// forward collects the client's messages into round trips, and forwards what the
// server sends by itself.
func (c *conn) forward() {
	var r request
	for {
		m, ok := c.next()
		if !ok {
			return
		}
		r.add(c, m)
		switch m[0] {
		case terminateByte:
			c.toServer(r.unsent)
			return
		case flushByte:
			// The server answers this part while the rest is collected.
			if !c.toServer(r.unsent) {
				return
			}
			r.unsent = nil
		case queryByte, syncByte, copyDoneByte, copyFailByte, functionByte:
			if !c.roundTrip(r) {
				return
			}
			r = request{}
		}
	}
}

// next is the client's next message. Until it comes, the server's messages are
// forwarded.
func (c *conn) next() ([]byte, bool) {
	if len(c.early) > 0 {
		m := c.early[0]
		c.early = c.early[1:]
		return m, true
	}
	for {
		select {
		case m, ok := <-c.requests:
			return m, ok
		case m, ok := <-c.responses:
			if !ok || !c.toClient(m) {
				return nil, false
			}
		}
	}
}

// roundTrip forwards one, unless the plan strikes. It reports whether the connection
// is still open.
func (c *conn) roundTrip(r request) bool {
	t := r.trip(c)
	switch c.plan.before(t) {
	case drop:
		return false
	case refuse:
		return c.refuse(t)
	case pass:
	}
	if !c.toServer(r.unsent) {
		return false
	}
	a, whole := c.answer(t)
	if !whole {
		c.toClient(a.text) // the server has ended the session, and may have reported why
		return false
	}
	if a.idle() {
		c.group = nil
	}
	switch c.plan.after(t, a.rows) {
	case drop:
		return false
	case refuse:
		c.toClient(shutdown())
		return false
	case pass:
	}
	return c.toClient(append(a.text, a.ready...))
}

// answer is what the server sends to a round trip.
type answer struct {
	text  []byte
	ready []byte // the message that ends it
	rows  int
}

// idle reports whether no transaction is open after it.
func (a answer) idle() bool { return a.ready[0] == readyByte && a.ready[5] == 'I' }

// answer reads a whole answer. It is not whole if the server's connection ends, or
// the client's, unless the trip is doomed.
func (c *conn) answer(t *trip) (a answer, whole bool) {
	requests := c.requests
	for {
		select {
		case m, ok := <-c.responses:
			switch {
			case !ok:
				return a, false
			case m[0] == readyByte || m[0] == copyInByte:
				a.ready = m
				return a, true
			case m[0] == commandCompleteByte:
				a.rows = int(pgconn.NewCommandTag(string(m[5 : len(m)-1])).RowsAffected())
			}
			a.text = append(a.text, m...)
		case m, ok := <-requests:
			switch {
			case ok:
				c.early = append(c.early, m)
			case t.doomed:
				requests = nil
			default:
				return answer{}, false
			}
		}
	}
}

// refuse lets the server fail in place of the request, so the state of the
// transaction is what the client is answered.
func (c *conn) refuse(t *trip) bool {
	if t.fault == Shutdown {
		c.toClient(shutdown())
		return false
	}
	if !c.toServer(encoded(&pgproto3.Query{String: "do $$ begin raise exception using errcode = '" + string(t.fault) +
		"', message = 'planted between program and server'; end $$"})) {
		return false
	}
	a, whole := c.answer(t)
	if whole && t.closes {
		// A commit that fails leaves no transaction behind.
		if !c.toServer(encoded(&pgproto3.Query{String: "rollback"})) {
			return false
		}
		var after answer
		after, whole = c.answer(t)
		a.ready, c.group = after.ready, nil
	}
	return whole && c.toClient(append(a.text, a.ready...))
}
