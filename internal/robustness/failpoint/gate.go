package failpoint

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
)

// Gate stands before an HTTP server.
type Gate struct {
	*httptest.Server

	transport *http.Transport
}

// Call is one request of the victim. Its pointer is the same on both sides.
type Call struct {
	Request *http.Request
	Side    Side
}

// CallHook decides about a call on each of its sides: None, Cut, or an HTTP status that is answered
// instead. It is called concurrently, and may take its time.
type CallHook func(*Call) Fault

// Broken is the Fault of a server that fails, before or after its work.
const Broken = "500"

type hookKey struct{}

// NewGate starts a gate before the server of an origin. begin is called for each connection,
// and returns the hook that decides about its calls. Close ends the gate.
func NewGate(upstream string, begin func() CallHook) (*Gate, error) {
	origin, err := url.Parse(upstream)
	if err != nil {
		return nil, fmt.Errorf("read the address of an HTTP server: %w", err)
	}
	g := &Gate{transport: &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}}
	forward := &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(origin) },
		Transport:    g.transport,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	g.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { pass(w, r, forward) }))
	g.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, hookKey{}, begin())
	}
	g.Start()
	return g, nil
}

// Close ends the gate and its requests in flight.
func (g *Gate) Close() {
	g.CloseClientConnections()
	g.Server.Close()
	g.transport.CloseIdleConnections()
}

// pass forwards one request, unless the hook refuses it. A request that was sent
// arrives, whether or not its sender still lives.
func pass(w http.ResponseWriter, r *http.Request, forward http.Handler) {
	r = r.WithContext(context.WithoutCancel(r.Context()))
	call := &Call{Request: r, Side: Before}
	hook, _ := r.Context().Value(hookKey{}).(CallHook)
	if fault := hook(call); fault != None {
		refuse(w, fault)
		return
	}
	answer := httptest.NewRecorder()
	forward.ServeHTTP(answer, r)
	call.Side = After
	if fault := hook(call); fault != None {
		refuse(w, fault)
		return
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // the client may have gone
}

// refuse answers with a fault: a 500 as the provider writes it, any other status as a proxy before it
// does. Without a status the connection is cut.
func refuse(w http.ResponseWriter, fault Fault) {
	status, err := strconv.Atoi(string(fault))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	media, text := "text/html", "<html><body>try again later</body></html>\n"
	if fault == Broken {
		media, text = "application/json", `{"error":{"type":"api_error","message":"planted between program and provider"}}`+"\n"
	}
	w.Header().Set("Content-Type", media)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}
