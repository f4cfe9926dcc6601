// Package cutproxy stands between a test's pool and its PostgreSQL server, and
// cuts a connection at a message of the test's choice: before the server has it,
// or after the server has answered it and nobody has heard the answer. So a test
// meets a commit whose outcome is unknown, in both of its truths.
//
// It promises that an armed cut happens once, at the first Sync that fits, and
// that nothing is left open when the test ends. It speaks plain text only.
package cutproxy

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// Side is the side of the server's work on which the connection is cut.
type Side int

const (
	// Before cuts when the client asks: the server never hears of it.
	Before Side = iota
	// After cuts when the server has answered in full: the work is durable, and
	// the client never hears of it.
	After
)

// Proxy forwards connections to one server.
type Proxy struct {
	url      string
	network  string
	address  string
	listener net.Listener
	serving  sync.WaitGroup

	mu       sync.Mutex
	open     map[net.Conn]bool // both ends of every connection
	closed   bool
	armed    bool
	side     Side
	executes int
	last     bool
	cuts     int
}

// Start starts a proxy before the server of a connection string. It ends with
// the test.
func Start(tb testing.TB, server string) *Proxy {
	tb.Helper()
	config, err := pgconn.ParseConfig(server)
	if err != nil {
		tb.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{listener: listener, open: map[net.Conn]bool{}}
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	through := url.URL{
		Scheme: "postgres", User: url.UserPassword(config.User, config.Password),
		Host: listener.Addr().String(), Path: "/" + config.Database, RawQuery: "sslmode=disable",
	}
	p.url = through.String()
	p.serving.Go(p.accept)
	tb.Cleanup(p.Close)
	return p
}

// URL is the connection string through the proxy.
func (p *Proxy) URL() string { return p.url }

// Arm cuts the connection that next sends a Sync after at least so many
// Executes: 0 for any Sync, 1 for a query, 2 for a batch of two statements. A
// new connection's first queries are preceded by a Sync without an Execute,
// which prepares them.
func (p *Proxy) Arm(side Side, executes int) { p.arm(side, executes, false) }

// ArmLast is Arm for a server that is gone with the connection: new ones are
// refused from then on.
func (p *Proxy) ArmLast(side Side, executes int) { p.arm(side, executes, true) }

func (p *Proxy) arm(side Side, executes int, last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.side, p.executes, p.last = true, side, executes, last
}

// Cuts tells how many connections were cut at a Sync.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Close cuts all connections and refuses new ones.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for conn := range p.open {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.serving.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial(p.network, p.address) //nolint:noctx // it ends with the proxy
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.track(client, server) {
			return
		}
		c := &connection{proxy: p, client: client, server: server}
		p.serving.Go(c.forwardQuestions)
		p.serving.Go(c.forwardAnswers)
	}
}

func (p *Proxy) track(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		p.open[conn] = true
		if p.closed {
			_ = conn.Close()
		}
	}
	return !p.closed
}

// strike tells whether a Sync after n Executes is the one to cut at.
func (p *Proxy) strike(n int) (Side, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.armed || n < p.executes {
		return 0, false
	}
	p.armed = false
	p.cuts++
	if p.last {
		_ = p.listener.Close() // Close closes it again, and is told so
	}
	return p.side, true
}

type connection struct {
	proxy          *Proxy
	client, server net.Conn

	mu     sync.Mutex
	silent bool // answers are read, not forwarded
}

func (c *connection) cut() {
	_ = c.client.Close()
	_ = c.server.Close()
	c.proxy.mu.Lock()
	delete(c.proxy.open, c.client)
	delete(c.proxy.open, c.server)
	c.proxy.mu.Unlock()
}

// The message types that matter here.
const (
	execute       = 'E' // from the client
	syncMessage   = 'S' // from the client
	readyForQuery = 'Z' // from the server
)

func (c *connection) forwardQuestions() {
	startup, err := frame(c.client, 0)
	if err == nil {
		_, err = c.server.Write(startup)
	}
	executes := 0
	for err == nil {
		var message []byte
		if message, err = frame(c.client, 1); err != nil {
			break
		}
		switch message[0] {
		case execute:
			executes++
		case syncMessage:
			if side, now := c.proxy.strike(executes); now && side == Before {
				c.cut()
				return
			} else if now {
				c.mu.Lock()
				c.silent = true
				c.mu.Unlock()
			}
			executes = 0
		}
		_, err = c.server.Write(message)
	}
	c.mu.Lock()
	waiting := c.silent // the client may go, its commit goes on
	c.mu.Unlock()
	if !waiting {
		c.cut()
	}
}

func (c *connection) forwardAnswers() {
	defer c.cut()
	for {
		message, err := frame(c.server, 1)
		if err != nil {
			return
		}
		c.mu.Lock()
		silent := c.silent
		c.mu.Unlock()
		if silent && message[0] == readyForQuery {
			return
		}
		if silent {
			continue
		}
		if _, err := c.client.Write(message); err != nil {
			return
		}
	}
}

// frame reads one message: so many bytes of type, then a length that counts
// itself, then the rest.
func frame(r io.Reader, kind int) ([]byte, error) {
	head := make([]byte, kind+4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("read the head of a message: %w", err)
	}
	message := make([]byte, kind+int(binary.BigEndian.Uint32(head[kind:])))
	copy(message, head)
	if _, err := io.ReadFull(r, message[len(head):]); err != nil {
		return nil, fmt.Errorf("read a message: %w", err)
	}
	return message, nil
}
