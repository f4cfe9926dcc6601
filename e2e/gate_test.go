package e2e_test

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// side says whether a request has reached the outside when the gate asks: before
// it was forwarded, or after its whole answer was read and nothing of it was
// given back.
type side string

const (
	before side = "before"
	after  side = "after"
)

// passage is one request at one side of a gate.
type passage struct {
	call   string // create, confirm, cancel, retrieve, webhook
	side   side
	worker int // who sent it; the shop's gate does not know and says -1
}

// gates stand between the workers and the outside: one before the provider for
// each worker, one before the shop. They see every request on both sides, and
// cut off those that the guard does not let pass.
type gates struct {
	upstream  string
	transport http.RoundTripper
	providers []string // base URLs, by worker
	shop      string

	mu     sync.Mutex
	guard  func(passage) bool
	calls  []string // that were forwarded
	traces []string // the Traceparent headers of these calls
}

func newGates(t *testing.T, upstream string, workers int) *gates {
	t.Helper()
	g := &gates{upstream: upstream, transport: once{newTransport()}, guard: func(passage) bool { return true }}
	open := func(worker int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.serve(w, r, worker) }))
		t.Cleanup(s.Close)
		return s.URL
	}
	for worker := range workers {
		g.providers = append(g.providers, open(worker))
	}
	g.shop = open(-1)
	return g
}

// set puts another guard in place, and forgets what was forwarded so far. The
// guard is called by many goroutines.
func (g *gates) set(guard func(passage) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.guard, g.calls, g.traces = guard, nil, nil
}

// open lets everything pass.
func (g *gates) open() { g.set(func(passage) bool { return true }) }

// forwarded are the calls that reached the outside, in order.
func (g *gates) forwarded() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.calls...)
}

// traceparents are the traces that were sent to the provider or the shop.
func (g *gates) traceparents() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.traces)
}

func (g *gates) pass(p passage) bool {
	g.mu.Lock()
	guard := g.guard
	g.mu.Unlock()
	return guard(p)
}

// serve carries one request through. What the guard refuses ends like a cut
// connection.
func (g *gates) serve(w http.ResponseWriter, r *http.Request, worker int) {
	p := passage{call: nameOf(r), side: before, worker: worker}
	body, err := io.ReadAll(r.Body)
	if err != nil || !g.pass(p) {
		panic(http.ErrAbortHandler)
	}
	g.mu.Lock()
	g.calls = append(g.calls, p.call)
	g.traces = append(g.traces, r.Header.Values("Traceparent")...)
	g.mu.Unlock()
	// A request that has left arrives, whether or not its sender still lives.
	got, err := g.forward(context.WithoutCancel(r.Context()), r, body)
	p.side = after
	if err != nil || !g.pass(p) {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), got.Header)
	w.WriteHeader(got.Status)
	_, _ = w.Write(got.Body) // the client may be gone
}

func (g *gates) forward(ctx context.Context, r *http.Request, body []byte) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, r.Method, g.upstream+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.Header = r.Header.Clone()
	response, err := g.transport.RoundTrip(request)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	got := answer{Status: response.StatusCode, Header: response.Header}
	got.Body, err = io.ReadAll(response.Body)
	return got, err
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
