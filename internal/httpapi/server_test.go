package httpapi_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/httpapi"
)

// dial writes the beginning of a request, and returns the connection, which a
// read ends after patience.
func (w *world) dial(t *testing.T, beginning string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, beginning); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestServerBoundsEveryRequest(t *testing.T) {
	t.Parallel()
	server := made(t, newAPI(nil, io.Discard)).Server()
	for name, bound := range map[string]time.Duration{
		"ReadHeaderTimeout": server.ReadHeaderTimeout, "ReadTimeout": server.ReadTimeout,
		"WriteTimeout": server.WriteTimeout, "IdleTimeout": server.IdleTimeout,
	} {
		if bound <= 0 || bound > time.Minute {
			t.Errorf("%s is %s", name, bound)
		}
	}
	if server.ReadHeaderTimeout > server.ReadTimeout || server.MaxHeaderBytes != 16<<10 || server.ErrorLog == nil {
		t.Errorf("server: %+v", server)
	}
}

func TestServer(t *testing.T) {
	t.Parallel()
	t.Run("a header that never ends is not waited for", func(t *testing.T) {
		t.Parallel()
		w := serveBare(t, func(*httpapi.Config) {}, func(s *http.Server) { s.ReadHeaderTimeout = 50 * time.Millisecond })
		conn := w.dial(t, "GET /healthz HTTP/1.1\r\nHost: payonce\r\nX-Slow: ")
		if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection is still open")
		}
	})
	t.Run("a body that never ends is not waited for, and stores nothing", func(t *testing.T) {
		t.Parallel()
		w := serveBare(t, func(*httpapi.Config) {}, func(s *http.Server) { s.ReadTimeout = 50 * time.Millisecond })
		before := rows(t, w.db)
		conn := w.dial(t, "POST /v1/charges HTTP/1.1\r\nHost: payonce\r\nContent-Type: application/json\r\n"+
			"Authorization: Bearer "+apiKey+"\r\nIdempotency-Key: key-1\r\nContent-Length: 1000\r\n\r\n"+body())
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("status %d", response.StatusCode)
		}
		if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection is still open")
		}
		wantRows(t, w.db, before, nil)
	})
	t.Run("a body shorter than it says stores nothing", func(t *testing.T) {
		t.Parallel()
		w := serveBare(t, func(*httpapi.Config) {}, func(*http.Server) {})
		before := rows(t, w.db)
		conn := w.dial(t, "POST /v1/charges HTTP/1.1\r\nHost: payonce\r\nContent-Type: application/json\r\n"+
			"Authorization: Bearer "+apiKey+"\r\nIdempotency-Key: key-1\r\nContent-Length: 1000\r\n\r\n"+body())
		if half, ok := conn.(*net.TCPConn); !ok || half.CloseWrite() != nil {
			t.Fatal("the connection cannot be closed by half")
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("status %d", response.StatusCode)
		}
		wantRows(t, w.db, before, nil)
	})
	t.Run("a header of 15 kB passes, and one of 32 kB is refused", func(t *testing.T) {
		t.Parallel()
		w := serveBare(t, func(*httpapi.Config) {}, func(*http.Server) {})
		if a := w.send(t, get("/healthz").with("X-Long", strings.Repeat("x", 15<<10))); a.status != http.StatusOK {
			t.Errorf("15 kB: status %d", a.status)
		}
		a := w.send(t, get("/healthz").with("X-Long", strings.Repeat("x", 32<<10)))
		if a.status != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("32 kB: status %d", a.status)
		}
	})
}
