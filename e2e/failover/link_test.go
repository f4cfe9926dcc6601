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
	cut    chan struct{} // closed when the line is cut
	ended  chan struct{} // closed when the line is replaced

	mu    sync.Mutex
	conns []net.Conn
}

func newLink(t *testing.T, to *local.Server) *link {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	l := &link{listener: listener, line: newLine(t, to)}
	l.serving.Go(func() { l.accept(context.WithoutCancel(t.Context())) })
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
	socket := u.Query().Get("host") + "/.s.PGSQL." + u.Query().Get("port")
	return &line{socket: socket, cut: make(chan struct{}), ended: make(chan struct{})}
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

func (l *link) accept(ctx context.Context) {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		l.serving.Go(func() { l.now().serve(ctx, client) })
	}
}

// serve moves the bytes of one connection.
func (l *line) serve(ctx context.Context, client net.Conn) {
	l.keep(client)
	select {
	case <-l.cut:
		<-l.ended
		return
	default:
	}
	server, err := (&net.Dialer{}).DialContext(ctx, "unix", l.socket)
	if err != nil {
		_ = client.Close()
		return
	}
	l.keep(server)
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
			<-l.ended
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

func (l *line) keep(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	select {
	case <-l.ended:
		_ = c.Close()
	default:
	}
}

func (l *line) end() {
	close(l.ended)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
}
