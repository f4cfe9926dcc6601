package failpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
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
	g.Server = httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(origin) },
		Transport:    g,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	})
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

// RoundTrip forwards one request, unless the hook refuses it. A request that was sent
// arrives, whether or not its sender still lives.
func (g *Gate) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.WithContext(context.WithoutCancel(r.Context()))
	call := &Call{Request: r, Side: Before}
	hook, _ := r.Context().Value(hookKey{}).(CallHook)
	if fault := hook(call); fault != None {
		return refused(fault)
	}
	response, err := g.transport.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("forward a request: %w", err)
	}
	call.Side = After
	answer, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("read an answer: %w", err)
	}
	if fault := hook(call); fault != None {
		return refused(fault)
	}
	response.Body = io.NopCloser(bytes.NewReader(answer))
	return response, nil
}

// refused is the answer to a fault: a 500 as the provider writes it, any other status
// as a proxy before it does.
func refused(fault Fault) (*http.Response, error) {
	status, err := strconv.Atoi(string(fault))
	if err != nil {
		return nil, errors.New("cut")
	}
	media, text := "text/html", "<html><body>try again later</body></html>\n"
	if fault == Broken {
		media, text = "application/json", `{"error":{"type":"api_error","message":"planted between program and provider"}}`+"\n"
	}
	return &http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {media}},
		Body: io.NopCloser(strings.NewReader(text)),
	}, nil
}
