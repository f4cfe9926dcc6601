package failpoint

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
)

// Proxy stands before a PostgreSQL server.
type Proxy struct {
	begin    func() Hook // nil where the bytes pass unseen
	url      string
	listener net.Listener
	serving  sync.WaitGroup

	mu   sync.Mutex
	open map[net.Conn]bool // both ends of every connection
	to   *route            // an empty one after Close
}

// route is where new connections of a proxy lead.
type route struct {
	network, address string
	lost             atomic.Bool // every packet is lost
}

// NewProxy starts a proxy before the server of a connection string. begin is called for each
// connection, and returns the hook that decides about its round trips. Without begin the proxy is a
// link: bytes of any protocol pass unseen. Close ends the proxy.
func NewProxy(ctx context.Context, server string, begin func() Hook) (*Proxy, error) {
	config, err := pgconn.ParseConfig(server)
	if err != nil {
		return nil, fmt.Errorf("read the server's address: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen before the server: %w", err)
	}
	through := url.URL{
		Scheme: "postgres", User: url.UserPassword(config.User, config.Password),
		Host: listener.Addr().String(), Path: "/" + config.Database, RawQuery: "sslmode=disable&connect_timeout=30", // as long as local.Server.URL
	}
	p := &Proxy{begin: begin, url: through.String(), listener: listener, open: map[net.Conn]bool{}, to: newRoute(config)}
	p.serving.Go(func() { p.accept(context.WithoutCancel(ctx)) })
	return p, nil
}

func newRoute(to *pgconn.Config) *route {
	r := &route{}
	r.network, r.address = pgconn.NetworkAddress(to.Host, to.Port)
	return r
}

// URL is the connection string through the proxy.
func (p *Proxy) URL() string { return p.url }

// Address is the host and port of the proxy.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// CutAll closes every connection. New ones are accepted.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.open {
		_ = conn.Close()
	}
}

// Lose makes a link lose every packet until Lead: no byte moves and nothing closes, and so do new
// connections.
func (p *Proxy) Lose() { p.now().lost.Store(true) }

// Lead closes every connection. New ones reach the server of another connection string.
func (p *Proxy) Lead(server string) error {
	config, err := pgconn.ParseConfig(server)
	if err != nil {
		return fmt.Errorf("read the server's address: %w", err)
	}
	p.turn(newRoute(config))
	return nil
}

// Close closes every connection, refuses new ones and waits until all have ended.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.turn(&route{})
	p.serving.Wait()
}

func (p *Proxy) now() *route {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.to
}

func (p *Proxy) turn(to *route) {
	p.mu.Lock()
	p.to = to
	p.mu.Unlock()
	p.CutAll()
}

func (p *Proxy) accept(ctx context.Context) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		to := p.now()
		p.track(client, to)
		serve := func() { p.pass(ctx, client, to) }
		if p.begin != nil {
			c := &conn{proxy: p, hook: p.begin(), client: client}
			serve = func() { c.serve(ctx, to) }
		}
		p.serving.Go(func() {
			defer p.drop(client)
			serve()
		})
	}
}

func (p *Proxy) dial(ctx context.Context, to *route) (net.Conn, error) {
	server, err := (&net.Dialer{}).DialContext(ctx, to.network, to.address)
	if err != nil {
		return nil, fmt.Errorf("reach the server: %w", err)
	}
	p.track(server, to)
	return server, nil
}

// track keeps a connection for CutAll, and closes it if it is of a route that has ended.
func (p *Proxy) track(c net.Conn, of *route) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[c] = true
	if of != p.to {
		_ = c.Close()
	}
}

func (p *Proxy) drop(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

// pass moves the bytes of one connection of a link.
func (p *Proxy) pass(ctx context.Context, client net.Conn, to *route) {
	if to.lost.Load() {
		_, _ = io.Copy(io.Discard, client)
		return
	}
	server, err := p.dial(ctx, to)
	if err != nil {
		return
	}
	defer p.drop(server)
	var back sync.WaitGroup
	back.Go(func() { to.pump(client, server) })
	to.pump(server, client)
	back.Wait()
}

// pump moves the bytes of one direction until an end is closed. The other end then closes too, unless
// that packet is lost.
func (r *route) pump(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if r.lost.Load() {
			if err != nil {
				return
			}
			continue
		}
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
	}
}
