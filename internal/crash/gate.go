package crash

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
	watch     *Watch
	upstream  string
	transport *http.Transport
	listener  net.Listener
	server    *http.Server
	serving   sync.WaitGroup
}

// headerPatience bounds a client that sends half a request.
const headerPatience = 10 * time.Second

type planKey struct{}

// NewGate starts a gate before the server of an origin. What goes through it is
// told to the plan of watch. Close ends it.
func NewGate(ctx context.Context, upstream string, watch *Watch) (*Gate, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen before the outside: %w", err)
	}
	g := &Gate{
		watch: watch, upstream: upstream, listener: listener,
		transport: &http.Transport{MaxIdleConnsPerHost: 16, DisableCompression: true},
	}
	g.server = &http.Server{
		Handler:           http.HandlerFunc(g.serve),
		ReadHeaderTimeout: headerPatience,
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, planKey{}, watch.now())
		},
	}
	g.serving.Go(func() { _ = g.server.Serve(listener) }) // until Close
	return g, nil
}

// URL is the origin of the gate.
func (g *Gate) URL() string { return "http://" + g.listener.Addr().String() }

// Close ends the gate and the requests that it carries.
func (g *Gate) Close() {
	_ = g.server.Close()
	g.serving.Wait()
	g.transport.CloseIdleConnections()
}

// serve carries one request through, unless the plan strikes.
func (g *Gate) serve(w http.ResponseWriter, r *http.Request) {
	plan, watched := r.Context().Value(planKey{}).(*Plan)
	body, err := io.ReadAll(r.Body)
	if err != nil || !watched {
		panic(http.ErrAbortHandler)
	}
	t := &trip{name: requestName(r.Method, r.URL.Path), kind: HTTP}
	switch plan.before(t) {
	case drop:
		panic(http.ErrAbortHandler)
	case refuse:
		plan.answer(w)
		return
	case pass:
	}
	// A request that has left arrives, whether or not its sender still lives.
	status, header, said, err := g.forward(context.WithoutCancel(r.Context()), r, body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	switch plan.after(t, 1) {
	case drop:
		panic(http.ErrAbortHandler)
	case refuse:
		plan.answer(w)
		return
	case pass:
	}
	maps.Copy(w.Header(), header)
	w.WriteHeader(status)
	_, _ = w.Write(said) // who is gone cannot be told
}

// forward sends the request once: net/http may send one again that carries an
// Idempotency-Key, unless it cannot read the body again.
func (g *Gate) forward(ctx context.Context, r *http.Request, body []byte) (status int, header http.Header, said []byte, err error) {
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
	said, err = io.ReadAll(response.Body)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("read an answer: %w", err)
	}
	return response.StatusCode, response.Header, said, nil
}

// answer answers the plan's fault: a 500 as the provider writes it, anything else
// as something before it does.
func (p *Plan) answer(w http.ResponseWriter) {
	status, err := strconv.Atoi(string(p.aim.Fault))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	said := "<html><body>try again later</body></html>\n"
	if p.aim.Fault == Broken {
		w.Header().Set("Content-Type", "application/json")
		said = `{"error":{"type":"api_error","message":"planted between program and provider"}}` + "\n"
	} else {
		w.Header().Set("Content-Type", "text/html")
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, said) // who is gone cannot be told
}
