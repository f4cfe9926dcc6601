package failpoint

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Gate stands before an HTTP server.
type Gate struct {
	current   func() instrument // for a new connection
	hook      Hook              // in place of an instrument
	upstream  string
	transport *http.Transport
	listener  net.Listener
	server    *http.Server
	serving   sync.WaitGroup
}

// Hook is called on both sides of each request; answer is the body of the server's
// answer, nil on the side before. The request's body has been read. A hook that
// returns false cuts the connection: with Before, the server never has the request.
type Hook func(r *http.Request, side Side, answer []byte) bool

// headerTimeout bounds a client that sends half a request.
const headerTimeout = 10 * time.Second

type instrumentKey struct{}

// NewGate starts a gate before the server of an origin. The plan of watch decides
// about its round trips. Close ends it.
func NewGate(ctx context.Context, upstream string, watch *Watch) (*Gate, error) {
	return newGate(ctx, &Gate{upstream: upstream, current: watch.now})
}

// NewHookGate is NewGate with a hook in place of a plan.
func NewHookGate(ctx context.Context, upstream string, hook Hook) (*Gate, error) {
	return newGate(ctx, &Gate{upstream: upstream, hook: hook, current: func() instrument { return nil }})
}

func newGate(ctx context.Context, g *Gate) (*Gate, error) {
	var err error
	if g.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("listen before an HTTP server: %w", err)
	}
	g.transport = &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}
	g.server = &http.Server{
		Handler:           http.HandlerFunc(g.serve),
		ReadHeaderTimeout: headerTimeout,
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, instrumentKey{}, g.current())
		},
	}
	g.serving.Go(func() { _ = g.server.Serve(g.listener) }) // until Close
	return g, nil
}

// URL is the origin of the gate.
func (g *Gate) URL() string { return "http://" + g.listener.Addr().String() }

// Close ends the gate and its requests in flight.
func (g *Gate) Close() {
	_ = g.server.Close()
	g.serving.Wait()
	g.transport.CloseIdleConnections()
}

// serve forwards one request, unless the plan or the hook strikes.
func (g *Gate) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	t := &trip{name: requestName(r.Method, r.URL.Path), kind: HTTP}
	if g.strikes(w, r, t, Before, nil) {
		return
	}
	// A request that was sent arrives, whether or not its sender still lives.
	status, header, text, err := g.forward(context.WithoutCancel(r.Context()), r, body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if g.strikes(w, r, t, After, text) {
		return
	}
	maps.Copy(w.Header(), header)
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may be gone
}

// strikes reports whether a fault was answered. It panics where the connection is cut.
func (g *Gate) strikes(w http.ResponseWriter, r *http.Request, t *trip, side Side, answer []byte) bool {
	var v verdict
	switch plan, planned := r.Context().Value(instrumentKey{}).(instrument); {
	case g.hook != nil && g.hook(r, side, answer):
		return false
	case !planned:
		v = drop
	case side == Before:
		v = plan.before(t)
	default:
		v = plan.after(t, 1)
	}
	if v == drop {
		panic(http.ErrAbortHandler)
	}
	if v == refuse {
		refuseRequest(w, t.fault)
	}
	return v == refuse
}

// forward sends the request once: net/http may repeat one that has an
// Idempotency-Key, unless it cannot read the body a second time.
func (g *Gate) forward(ctx context.Context, r *http.Request, body []byte) (status int, header http.Header, text []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, r.Method, g.upstream+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, fmt.Errorf("make a request: %w", err)
	}
	request.Header, request.GetBody = r.Header.Clone(), nil
	response, err := g.transport.RoundTrip(request)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("forward a request: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err = io.ReadAll(response.Body)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("read an answer: %w", err)
	}
	return response.StatusCode, response.Header, text, nil
}

// refuseRequest answers a fault: a 500 as the provider writes it, any other status
// as a proxy before it does.
func refuseRequest(w http.ResponseWriter, fault Fault) {
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
	_, _ = io.WriteString(w, text) // the client may be gone
}
