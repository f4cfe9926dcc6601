package httpapi_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/testdb"
)

// What a client library would never send is written by hand here.

const mine = "Host: payonce\r\nAuthorization: Bearer " + apiKey + "\r\n"

// asking is a request for a charge under a key, with further headers.
func asking(key string, lines ...string) string {
	sent := body()
	return "POST /v1/charges HTTP/1.1\r\n" + mine + "Idempotency-Key: " + key + "\r\n" +
		strings.Join(append(lines, "Content-Length: "+strconv.Itoa(len(sent))), "\r\n") + "\r\n\r\n" + sent
}

// inChunks is one whose body says in chunks how long it is, and in a header too.
func inChunks(key, sent string, lines ...string) string {
	return "POST /v1/charges HTTP/1.1\r\n" + mine + "Content-Type: application/json\r\nIdempotency-Key: " + key + "\r\n" +
		strings.Join(append(lines, "Transfer-Encoding: chunked"), "\r\n") + "\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(sent), sent)
}

const isJSON = "Content-Type: application/json"

// TestHostileRequest_isRefused: each is refused by a problem of the contract, and stores
// nothing.
func TestHostileRequest_isRefused(t *testing.T) {
	t.Parallel()
	w := serve(t)
	address := w.listen(t, w.handler)
	before := rows(t, w.db)
	for _, test := range []struct{ name, sent, want string }{
		{"a key over two lines", asking("a\r\n b", isJSON), "/problems/idempotency-key-invalid"},
		{
			"a key in a trailer", strings.Replace(inChunks("a", body(), "Trailer: Idempotency-Key"), "Idempotency-Key: a\r\n", "", 1),
			"/problems/idempotency-key-missing",
		},
		{"a body that does not say its size", inChunks("a", padded(body(), maxBody+1)), "/problems/too-large"},
		{"another server, and no path", "GET http://other.example HTTP/1.1\r\n" + mine + "\r\n", "/problems/not-found"},
		{"the server as a whole", "OPTIONS * HTTP/1.1\r\n" + mine + "\r\n", "/problems/not-found"},
		{"a tunnel", "CONNECT other.example:443 HTTP/1.1\r\n" + mine + "\r\n", "/problems/not-found"},
		{"a method in lower case", "get /v1/balances HTTP/1.1\r\n" + mine + "\r\n", "/problems/method-not-allowed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			wantProblem(t, readAnswer(t, bufio.NewReader(dial(t, address, test.sent))), test.want)
		})
	}
	wantRows(t, w.db, before, nil)
}

// TestSmuggledRequest_isNotServed: a body that says in two ways how long it is may end
// elsewhere for a proxy in front than for us. What follows it on the connection
// is not taken for a request.
func TestSmuggledRequest_isNotServed(t *testing.T) {
	t.Parallel()
	w := serve(t)
	address := w.listen(t, w.handler)
	before := rows(t, w.db)
	for i, lengths := range [][]string{{"Content-Length: 4"}, {"Content-Length: 100000"}, nil} {
		key := "outer-" + strconv.Itoa(i)
		answers := bufio.NewReader(dial(t, address, inChunks(key, body(), lengths...)+asking("inner", isJSON)))
		a := readAnswer(t, answers)
		if a.status != http.StatusAccepted || a.header.Get("Idempotency-Key") != key {
			t.Errorf("%q: status %d: %s", lengths, a.status, a.body)
		}
		if more, err := io.ReadAll(answers); len(more) > 0 {
			t.Errorf("%q: the connection goes on (%v): %s", lengths, err, more)
		}
	}
	wantRows(t, w.db, before, ofCharges(3))
}

func readAnswer(t *testing.T, from *bufio.Reader) answer {
	t.Helper()
	response, err := http.ReadResponse(from, nil)
	testdb.Must(t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	testdb.Must(t, err)
	return answer{status: response.StatusCode, header: response.Header, body: string(raw)}
}

// listen starts the server with a handler: w.handler, which answers when it has all of the answer, or the
// server's own.
func (w *world) listen(t *testing.T, handler http.Handler) (address string) {
	t.Helper()
	listener := httptest.NewUnstartedServer(nil)
	listener.Config, w.server.Handler = w.server, handler
	listener.Start()
	t.Cleanup(listener.Close)
	t.Cleanup(listener.CloseClientConnections)
	return listener.Listener.Addr().String()
}

// dial writes the beginning of a request, and returns the connection, which a
// read ends after patience.
func dial(t *testing.T, address, beginning string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	testdb.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	testdb.Must(t, conn.SetDeadline(time.Now().Add(patience)))
	if _, err := io.WriteString(conn, beginning); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestServer(t *testing.T) {
	t.Parallel()
	server := httpapi.New(*newAPI(t, nil, io.Discard)).Server()
	for _, bound := range []time.Duration{server.ReadHeaderTimeout, server.ReadTimeout, server.WriteTimeout, server.IdleTimeout} {
		if bound <= 0 || bound > time.Minute || server.ReadHeaderTimeout > server.ReadTimeout || server.MaxHeaderBytes != 16<<10 {
			t.Errorf("server: %+v", server)
		}
	}
	const soon, never = 50 * time.Millisecond, time.Hour
	begun, asks := "Content-Length: 1000\r\n\r\n"+body(), "Expect: 100-continue\r\nContent-Length: "
	for name, test := range map[string]struct {
		key, sent, problem string
		readTimeout        time.Duration
	}{
		"a body that never ends is not waited for":     {apiKey, begun, "/problems/malformed", soon},
		"a body that breaks off is refused":            {apiKey, begun, "/problems/malformed", never},
		"an announced body is refused for its size":    {apiKey, asks + "65537\r\n\r\n", "/problems/too-large", soon},
		"an announced body is refused without its key": {"unknown", asks + "10\r\n\r\n", "/problems/unauthorized", soon},
	} {
		t.Run(name+", and stores nothing", func(t *testing.T) {
			t.Parallel()
			w := serve(t)
			w.server.ReadTimeout = test.readTimeout
			before := rows(t, w.db)
			head := strings.Replace(mine, apiKey, test.key, 1) + isJSON + "\r\nIdempotency-Key: key-1\r\n"
			conn := dial(t, w.listen(t, w.server.Handler), "POST /v1/charges HTTP/1.1\r\n"+head+test.sent)
			if half, ok := conn.(*net.TCPConn); test.readTimeout == never && (!ok || half.CloseWrite() != nil) {
				t.Fatal("the connection cannot be closed by half")
			}
			from := bufio.NewReader(conn)
			wantProblem(t, readAnswer(t, from), test.problem)
			if _, err := io.ReadAll(from); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is still open")
			}
			wantRows(t, w.db, before, nil)
		})
	}
}
