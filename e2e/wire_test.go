package e2e_test

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// wire is the network between a program and its database: it can be cut and
// mended. While it is cut, no connection opens and none stays open.
type wire struct {
	listener net.Listener
	network  string
	address  string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func newWire(t *testing.T, database string) *wire {
	t.Helper()
	config, err := pgconn.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: l, conns: map[net.Conn]bool{}}
	w.network, w.address = pgconn.NetworkAddress(config.Host, config.Port)
	go w.accept(t.Context())
	t.Cleanup(func() {
		_ = l.Close()
		w.set(true)
	})
	return w
}

// url is the address of the same database through the wire.
func (w *wire) url(database string) string {
	u, err := url.Parse(database)
	if err != nil {
		return err.Error()
	}
	u.Host = w.listener.Addr().String()
	query := u.Query()
	for _, name := range []string{"host", "port"} {
		query.Del(name)
	}
	query.Set("sslmode", "disable")
	u.RawQuery = query.Encode()
	return u.String()
}

func (w *wire) accept(ctx context.Context) {
	for {
		conn, err := w.listener.Accept()
		if err != nil {
			return
		}
		go w.carry(ctx, conn)
	}
}

func (w *wire) carry(ctx context.Context, client net.Conn) {
	defer w.drop(client)
	if !w.keep(client) {
		return
	}
	var d net.Dialer
	server, err := d.DialContext(ctx, w.network, w.address)
	if err != nil {
		return
	}
	defer w.drop(server)
	if !w.keep(server) {
		return
	}
	go func() {
		_, _ = io.Copy(server, client)
		w.drop(server)
	}()
	_, _ = io.Copy(client, server)
}

func (w *wire) keep(conn net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.cut {
		w.conns[conn] = true
	}
	return !w.cut
}

func (w *wire) drop(conn net.Conn) {
	_ = conn.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, conn)
}

// set cuts or mends the wire.
func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if cut {
		for conn := range w.conns {
			_ = conn.Close()
		}
	}
}
