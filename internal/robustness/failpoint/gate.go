package failpoint

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
	"strconv"
	"strings"
	"sync"
	"time"
)

// Gate stands before an HTTP server.
type Gate struct {
	hook      Hook // in place of a plan
	transport *http.Transport
	listener  net.Listener
	server    *http.Server
	serving   sync.WaitGroup
}

// Hook is called on both sides of each request; answer is the body of the server's
// answer, nil on the side before. A hook that returns false cuts the connection: with
// Before, the server never has the request.
type Hook func(r *http.Request, side Side, answer []byte) bool

// headerTimeout bounds a client that sends half a request.
const headerTimeout = 10 * time.Second

type planKey struct{}

// NewGate starts a gate before the server of an origin. The plan of watch decides about its
// round trips or, unless it is nil, the hook. Close ends it.
func NewGate(ctx context.Context, upstream string, watch *Watch, hook Hook) (*Gate, error) {
	origin, err := url.Parse(upstream)
	if err != nil {
		return nil, fmt.Errorf("read the address of an HTTP server: %w", err)
	}
	g := &Gate{hook: hook, transport: &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}}
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
			return context.WithValue(ctx, planKey{}, watch.plan.Load())
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

// errCut is the error of a round trip whose connection is cut.
var errCut = errors.New("cut")

// RoundTrip forwards one request, unless the plan or the hook refuses it. A request that
// was sent arrives, whether or not its sender still lives.
func (g *Gate) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.WithContext(context.WithoutCancel(r.Context()))
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, fmt.Errorf("read a request: %w", err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	t := &trip{name: requestName(r.Method, r.URL.Path), kind: HTTP}
	if v := g.verdict(r, t, Before, nil); v != pass {
		return refuseRequest(v, t.fault)
	}
	response, err := g.transport.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("forward a request: %w", err)
	}
	text, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("read an answer: %w", err)
	}
	if v := g.verdict(r, t, After, text); v != pass {
		return refuseRequest(v, t.fault)
	}
	response.Body = io.NopCloser(bytes.NewReader(text))
	return response, nil
}

// verdict is that of the hook, or of the plan under which the connection began.
func (g *Gate) verdict(r *http.Request, t *trip, side Side, answer []byte) verdict {
	plan, planned := r.Context().Value(planKey{}).(*Plan)
	switch {
	case g.hook != nil && g.hook(r, side, answer):
		return pass
	case g.hook != nil, !planned:
		return drop
	case side == Before:
		return plan.before(t)
	default:
		return plan.after(t, 1)
	}
}

// refuseRequest answers a fault: a 500 as the provider writes it, any other status
// as a proxy before it does.
func refuseRequest(v verdict, fault Fault) (*http.Response, error) {
	status, err := strconv.Atoi(string(fault))
	if v == drop || err != nil {
		return nil, errCut
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
