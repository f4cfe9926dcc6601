package crash

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
)

// conn is one connection through the proxy.
type conn struct {
	proxy  *Proxy
	plan   *Plan
	client net.Conn
	server net.Conn

	questions <-chan []byte // from the client, closed with it
	answers   <-chan []byte // from the server, closed with it

	sort       int               // of session
	statements map[string]string // SQL by name
	portals    map[string]string // SQL by name
	group      *group            // of the transaction that is open; nil if none
	early      [][]byte          // what the client sent before it was answered
}

// serve carries the connection until one end is gone or it is cut.
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
	c.questions = c.read(c.client, done)
	c.answers = c.read(c.server, done)
	if !c.connect(startup) {
		return
	}
	c.carry()
}

// read sends whole messages until the connection or its user is gone.
func (c *conn) read(from net.Conn, done <-chan struct{}) <-chan []byte {
	messages := make(chan []byte)
	c.proxy.serving.Go(func() {
		defer close(messages)
		for {
			m, err := readFrame(from, 1)
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

// startup reads what the client begins with: its startup message, or nil for one
// that wanted something else.
func (c *conn) startup(ctx context.Context) ([]byte, error) {
	for {
		m, err := readFrame(c.client, 0)
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
	_, _ = io.Copy(io.Discard, server) // the server hangs up when it has taken it
	return nil
}

// connect is the round trip by which the session begins. An exchange of passwords
// within it is part of it.
func (c *conn) connect(startup []byte) bool {
	t := &trip{name: "connect", kind: Connect}
	var first bool
	c.sort, first = c.plan.session(settingsOf(startup))
	t.minor = !first
	t.name += c.ofSession()
	if c.plan.before(t) == drop || !c.tell(startup) {
		return false
	}
	var answer []byte
	for m := range c.answers {
		answer = append(answer, m...)
		switch {
		case m[0] == authentication && len(m) >= 9 && asks(m):
			if _, err := c.client.Write(answer); err != nil {
				return false
			}
			answer = nil
			password, ok := <-c.questions
			if !ok || !c.tell(password) {
				return false
			}
		case m[0] == readyForQuery:
			return c.plan.after(t, 0) != drop && c.deliver(answer)
		}
	}
	c.deliver(answer) // a refusal
	return false
}

// settingsOf are a startup message's settings, in one order: drivers send them in
// any.
func settingsOf(startup []byte) string {
	var settings []string
	for rest := startup[8:]; len(rest) > 0; {
		var name, value string
		name, rest = text(rest)
		value, rest = text(rest)
		settings = append(settings, name+"="+value)
	}
	slices.Sort(settings)
	return strings.Join(settings, "\n")
}

// asks tells whether the server waits for an answer to its authentication message.
func asks(m []byte) bool {
	kind := binary.BigEndian.Uint32(m[5:])
	return kind != 0 && kind != 12 // neither ok nor the end of SASL
}

// ofSession tells the further sorts of sessions from the first.
func (c *conn) ofSession() string {
	if c.sort <= 1 {
		return ""
	}
	return fmt.Sprintf(" (session %d)", c.sort)
}

func (c *conn) tell(m []byte) bool    { _, err := c.server.Write(m); return err == nil }
func (c *conn) deliver(m []byte) bool { _, err := c.client.Write(m); return err == nil }

// carry gathers the client's messages into round trips, and forwards what the
// server says by itself.
func (c *conn) carry() {
	var r request
	for {
		m, ok := c.next()
		if !ok {
			return
		}
		r.add(c, m)
		switch m[0] {
		case terminate:
			c.tell(r.unsent)
			return
		case flushMessage:
			// What it asks for comes while the rest is gathered.
			if !c.tell(r.unsent) {
				return
			}
			r.unsent = nil
		case queryMessage, syncMessage, copyDone, copyFail, functionMessage:
			if !c.roundTrip(r) {
				return
			}
			r = request{}
		}
	}
}

// next is the client's next message. What the server says meanwhile is forwarded.
func (c *conn) next() ([]byte, bool) {
	if len(c.early) > 0 {
		m := c.early[0]
		c.early = c.early[1:]
		return m, true
	}
	for {
		select {
		case m, ok := <-c.questions:
			return m, ok
		case m, ok := <-c.answers:
			if !ok || !c.deliver(m) {
				return nil, false
			}
		}
	}
}

// roundTrip carries one, unless the plan strikes. It says whether the connection
// lives.
func (c *conn) roundTrip(r request) bool {
	t := r.trip(c)
	switch c.plan.before(t) {
	case drop:
		return false
	case refuse:
		return c.refuse(t)
	case pass:
	}
	if !c.tell(r.unsent) {
		return false
	}
	a, whole := c.answer()
	if !whole {
		c.deliver(a.said) // the server has ended the session, and may have said why
		return false
	}
	if a.idle() {
		c.group = nil
	}
	switch c.plan.after(t, a.rows) {
	case drop:
		return false
	case refuse:
		c.deliver(ended())
		return false
	case pass:
	}
	return c.deliver(append(a.said, a.ready...))
}

// answer is what the server says to a round trip.
type answer struct {
	said  []byte
	ready []byte // the message that ends it
	rows  int
}

// idle tells whether no transaction is open behind it.
func (a answer) idle() bool { return a.ready[0] == readyForQuery && a.ready[5] == 'I' }

// answer reads a whole answer. One that is cut off, or that nobody waits for any
// more, is not whole.
func (c *conn) answer() (a answer, whole bool) {
	for {
		select {
		case m, ok := <-c.answers:
			switch {
			case !ok:
				return a, false
			case m[0] == readyForQuery || m[0] == copyIn:
				a.ready = m
				return a, true
			case m[0] == commandComplete:
				a.rows = rowsOf(m)
			}
			a.said = append(a.said, m...)
		case m, ok := <-c.questions:
			if !ok {
				return answer{}, false
			}
			c.early = append(c.early, m)
		}
	}
}

// refuse lets the server fail in place of the request, so that the transaction's
// state is what the client is told.
func (c *conn) refuse(t *trip) bool {
	if c.plan.aim.Fault == Shutdown {
		c.deliver(ended())
		return false
	}
	if !c.tell(raise(c.plan.aim.Fault)) {
		return false
	}
	a, whole := c.answer()
	if whole && t.closes {
		// A commit that fails leaves no transaction behind.
		if !c.tell(rollback()) {
			return false
		}
		var after answer
		after, whole = c.answer()
		a.ready, c.group = after.ready, nil
	}
	return whole && c.deliver(append(a.said, a.ready...))
}
