package failpoint

import (
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// Cutter stands between a test's pool and its PostgreSQL server, and cuts a
// connection at a message of the test's choice: before the server has it, or after
// the server has answered it and the answer is not delivered. So a test meets a
// commit whose outcome is unknown, in both of its truths. An armed cut happens
// once, at the first Sync that fits. Nothing is left open when the test ends.
type Cutter struct {
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

// StartCutter starts a cutter before the server of a connection string. It ends with
// the test.
func StartCutter(tb testing.TB, server string) *Cutter {
	tb.Helper()
	config, err := pgconn.ParseConfig(server)
	if err != nil {
		tb.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Cutter{listener: listener, open: map[net.Conn]bool{}}
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
func (p *Cutter) URL() string { return p.url }

// Arm cuts the connection that next sends a Sync after at least so many
// Executes: 0 for any Sync, 1 for a query, 2 for a batch of two statements. A
// new connection's first queries are preceded by a Sync without an Execute,
// which prepares them.
func (p *Cutter) Arm(side Side, executes int) { p.arm(side, executes, false) }

// ArmLast is Arm for a server that is gone with the connection: new ones are
// refused from then on.
func (p *Cutter) ArmLast(side Side, executes int) { p.arm(side, executes, true) }

func (p *Cutter) arm(side Side, executes int, last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed, p.side, p.executes, p.last = true, side, executes, last
}

// Cuts tells how many connections were cut at a Sync.
func (p *Cutter) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Close cuts all connections and refuses new ones.
func (p *Cutter) Close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for conn := range p.open {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.serving.Wait()
}

func (p *Cutter) accept() {
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

func (p *Cutter) track(conns ...net.Conn) bool {
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
func (p *Cutter) strike(n int) (Side, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.armed || n < p.executes {
		return "", false
	}
	p.armed = false
	p.cuts++
	if p.last {
		_ = p.listener.Close() // Close closes it again, and is told so
	}
	return p.side, true
}

type connection struct {
	proxy          *Cutter
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

func (c *connection) forwardQuestions() {
	startup, err := readFrame(c.client, 0)
	if err == nil {
		_, err = c.server.Write(startup)
	}
	executes := 0
	for err == nil {
		var message []byte
		if message, err = readFrame(c.client, 1); err != nil {
			break
		}
		switch message[0] {
		case executeMessage:
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
		message, err := readFrame(c.server, 1)
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
