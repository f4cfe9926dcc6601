package failover_test

import (
	"context"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/postgres/local"
)

// link is an address by which a server is reached over TCP. A link that is cut moves no
// byte and closes nothing, as a network that loses every packet; so do its new connections.
type link struct {
	listener net.Listener
	serving  sync.WaitGroup

	mu   sync.Mutex
	line *line
}

// line is a link until it leads to another server.
type line struct {
	socket string
	cut    chan struct{}   // closed when the line is cut
	ended  context.Context //nolint:containedctx // ends when the line is replaced, and ends the connections
	end    context.CancelFunc
}

func newLink(t *testing.T, to *local.Server) *link {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	l := &link{listener: listener, line: newLine(t, to)}
	l.serving.Go(l.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		l.now().end()
		l.serving.Wait()
	})
	return l
}

func newLine(t *testing.T, to *local.Server) *line {
	t.Helper()
	u, err := url.Parse(to.URL("postgres"))
	must(t, err)
	l := &line{socket: u.Query().Get("host") + "/.s.PGSQL." + u.Query().Get("port"), cut: make(chan struct{})}
	l.ended, l.end = context.WithCancel(context.WithoutCancel(t.Context()))
	return l
}

func (l *link) address() string { return l.listener.Addr().String() }

func (l *link) now() *line {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.line
}

// cut loses every packet from now on.
func (l *link) cut() { close(l.now().cut) }

// lead ends the connections. New ones reach another server.
func (l *link) lead(t *testing.T, to *local.Server) {
	t.Helper()
	next := newLine(t, to)
	l.mu.Lock()
	before := l.line
	l.line = next
	l.mu.Unlock()
	before.end()
}

func (l *link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		l.serving.Go(func() { l.now().serve(client) })
	}
}

// serve moves the bytes of one connection.
func (l *line) serve(client net.Conn) {
	context.AfterFunc(l.ended, func() { _ = client.Close() })
	select {
	case <-l.cut:
		return
	default:
	}
	server, err := (&net.Dialer{}).DialContext(l.ended, "unix", l.socket)
	if err != nil {
		_ = client.Close()
		return
	}
	context.AfterFunc(l.ended, func() { _ = server.Close() })
	var back sync.WaitGroup
	back.Go(func() { l.pump(client, server) })
	l.pump(server, client)
	back.Wait()
}

func (l *line) pump(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		select {
		case <-l.cut:
			return
		default:
		}
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
	}
}
