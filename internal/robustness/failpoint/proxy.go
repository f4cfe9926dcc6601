package failpoint

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// Proxy stands before a PostgreSQL server.
type Proxy struct {
	begin            func() Hook
	network, address string // of the server
	url              string
	listener         net.Listener
	serving          sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]bool // both ends of every connection
	closed bool
}

// NewProxy starts a proxy before the server of a connection string. begin is called for each
// connection, and returns the hook that decides about its round trips. Close ends the proxy.
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
	p := &Proxy{begin: begin, url: through.String(), listener: listener, open: map[net.Conn]bool{}}
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
	p.serving.Go(func() { p.accept(context.WithoutCancel(ctx)) })
	return p, nil
}

// URL is the connection string through the proxy.
func (p *Proxy) URL() string { return p.url }

// CutAll closes every connection. New ones are accepted.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.open {
		_ = conn.Close()
	}
}

// Close closes every connection, refuses new ones and waits until all have ended.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.CutAll()
	p.serving.Wait()
}

func (p *Proxy) accept(ctx context.Context) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.track(client)
		c := &conn{proxy: p, hook: p.begin(), client: client}
		p.serving.Go(func() {
			defer p.drop(client)
			c.serve(ctx)
		})
	}
}

func (p *Proxy) dial(ctx context.Context) (net.Conn, error) {
	server, err := (&net.Dialer{}).DialContext(ctx, p.network, p.address)
	if err != nil {
		return nil, fmt.Errorf("reach the server: %w", err)
	}
	p.track(server)
	return server, nil
}

// track keeps a connection for CutAll, and closes one that came after Close.
func (p *Proxy) track(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[c] = true
	if p.closed {
		_ = c.Close()
	}
}

func (p *Proxy) drop(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}
