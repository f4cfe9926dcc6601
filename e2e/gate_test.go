package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/robustness/failpoint"
)

// gate stands before an HTTP server.
type gate struct {
	transport *http.Transport
	listener  net.Listener
	server    *http.Server
	serving   sync.WaitGroup
}

// gateCall is one request at one side of a gate.
type gateCall struct {
	request *http.Request
	body    []byte // of the request
	side    failpoint.Side
	answer  []byte     // the body of the server's answer; nil on the side before
	trip    *roundTrip // of a plan
}

// gateHook decides about a call: None, failpoint.Cut or an HTTP status that is answered
// instead.
type gateHook func(*gateCall) failpoint.Fault

// headerTimeout bounds a client that sends half a request.
const headerTimeout = 10 * time.Second

type hookKey struct{}

// newGate starts a gate before the server of an origin. begin is called for each connection,
// and returns the hook that decides about its calls.
func newGate(ctx context.Context, upstream string, begin func() gateHook) (*gate, error) {
	origin, err := url.Parse(upstream)
	if err != nil {
		return nil, fmt.Errorf("read the address of an HTTP server: %w", err)
	}
	g := &gate{transport: &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}}
	if g.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("listen before an HTTP server: %w", err)
	}
	g.server = &http.Server{
		Handler: &httputil.ReverseProxy{
			Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(origin) },
			Transport:    g,
			ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		},
		ReadHeaderTimeout: headerTimeout,
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, hookKey{}, begin())
		},
	}
	g.serving.Go(func() { _ = g.server.Serve(g.listener) }) // until close
	return g, nil
}

// url is the origin of the gate.
func (g *gate) url() string { return "http://" + g.listener.Addr().String() }

// close ends the gate and its requests in flight.
func (g *gate) close() {
	_ = g.server.Close()
	g.serving.Wait()
	g.transport.CloseIdleConnections()
}

// RoundTrip forwards one request, unless the hook refuses it. A request that was sent
// arrives, whether or not its sender still lives.
func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.WithContext(context.WithoutCancel(r.Context()))
	call := &gateCall{request: r, side: failpoint.Before}
	var err error
	if r.Body != nil {
		if call.body, err = io.ReadAll(r.Body); err != nil {
			return nil, fmt.Errorf("read a request: %w", err)
		}
		r.Body = io.NopCloser(bytes.NewReader(call.body))
	}
	hook, _ := r.Context().Value(hookKey{}).(gateHook)
	if fault := hook(call); fault != failpoint.None {
		return refuseRequest(fault)
	}
	response, err := g.transport.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("forward a request: %w", err)
	}
	call.side = failpoint.After
	call.answer, err = io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("read an answer: %w", err)
	}
	if fault := hook(call); fault != failpoint.None {
		return refuseRequest(fault)
	}
	response.Body = io.NopCloser(bytes.NewReader(call.answer))
	return response, nil
}

// refuseRequest answers a fault: a 500 as the provider writes it, any other status
// as a proxy before it does.
func refuseRequest(fault failpoint.Fault) (*http.Response, error) {
	status, err := strconv.Atoi(string(fault))
	if err != nil {
		return nil, errors.New("cut")
	}
	media, text := "text/html", "<html><body>try again later</body></html>\n"
	if fault == faultBroken {
		media, text = "application/json", `{"error":{"type":"api_error","message":"planted between program and provider"}}`+"\n"
	}
	return &http.Response{
		StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {media}},
		Body: io.NopCloser(strings.NewReader(text)),
	}, nil
}

// passage is one request at one side of a gate.
type passage struct {
	*gateCall
	name string // create, confirm, cancel, retrieve, webhook
}

// gates stand between the workers and the provider, and before the shop. They show every
// request on both sides to the guard, and cut off those that it does not let pass.
type gates struct {
	url string

	mu     sync.Mutex
	guard  func(passage) bool
	calls  []string // that were forwarded
	traces []string // the Traceparent headers of these calls
}

func newGates(t *testing.T, upstream string) *gates {
	t.Helper()
	g := &gates{}
	g.open()
	gate, err := newGate(t.Context(), upstream, func() gateHook { return g.pass })
	must(t, err)
	t.Cleanup(gate.close)
	g.url = gate.url()
	return g
}

// set replaces the guard, and forgets what was forwarded so far. The guard is called
// concurrently.
func (g *gates) set(guard func(passage) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.guard, g.calls, g.traces = guard, nil, nil
}

// once does something at the first passage of a call, which passes if it returns true.
func (g *gates) once(call string, side failpoint.Side, do func() (passes bool)) {
	var once sync.Once
	g.set(func(p passage) (passes bool) {
		passes = true
		if p.name == call && p.side == side {
			once.Do(func() { passes = do() })
		}
		return passes
	})
}

// open lets everything pass.
func (g *gates) open() { g.set(func(passage) bool { return true }) }

// forwarded are the calls that were forwarded, and the traces that were sent with
// them, in order.
func (g *gates) forwarded() (calls, traces []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.calls), slices.Clone(g.traces)
}

func (g *gates) pass(c *gateCall) failpoint.Fault {
	g.mu.Lock()
	guard := g.guard
	g.mu.Unlock()
	name := nameOf(c.request)
	if !guard(passage{c, name}) {
		return failpoint.Cut
	}
	if c.side == failpoint.Before {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.calls = append(g.calls, name)
		g.traces = append(g.traces, c.request.Header.Values("Traceparent")...)
	}
	return failpoint.None
}

func nameOf(r *http.Request) string {
	switch rest, intents := strings.CutPrefix(r.URL.Path, "/v1/payment_intents"); {
	case r.URL.Path == "/shop/webhooks":
		return "webhook"
	case !intents:
		return r.Method + " " + r.URL.Path
	case r.Method == http.MethodGet:
		return "retrieve"
	case rest == "":
		return "create"
	default:
		return rest[strings.LastIndex(rest, "/")+1:]
	}
}
