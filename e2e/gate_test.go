package e2e_test

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/payonce/payonce/internal/robustness/failpoint"
)

// passage is one request at one side of a gate.
type passage struct {
	call   string // create, confirm, cancel, retrieve, webhook
	side   failpoint.Side
	worker int    // that sent it; -1 at the gate of the shop
	path   string // of the request
	answer []byte // of the server, on the side after
}

// gates stand between the workers and their servers: one before the provider for
// each worker, one before the shop. They show every request on both sides to the
// guard, and cut off those that it does not let pass.
type gates struct {
	providers []string // base URLs, by worker
	shop      string

	mu     sync.Mutex
	guard  func(passage) bool
	calls  []string // that were forwarded
	traces []string // the Traceparent headers of these calls
}

func newGates(t *testing.T, upstream string, workers int) *gates {
	t.Helper()
	g := &gates{}
	g.open()
	before := func(worker int) string {
		gate, err := failpoint.NewGate(t.Context(), upstream, failpoint.NewWatch(), func(r *http.Request, side failpoint.Side, answer []byte) bool {
			return g.pass(r, passage{call: nameOf(r), side: side, worker: worker, path: r.URL.Path, answer: answer})
		})
		must(t, err)
		t.Cleanup(gate.Close)
		return gate.URL()
	}
	for worker := range workers {
		g.providers = append(g.providers, before(worker))
	}
	g.shop = before(-1)
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
		if p.call == call && p.side == side {
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

func (g *gates) pass(r *http.Request, p passage) bool {
	g.mu.Lock()
	guard := g.guard
	g.mu.Unlock()
	passes := guard(p)
	if passes && p.side == failpoint.Before {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.calls = append(g.calls, p.call)
		g.traces = append(g.traces, r.Header.Values("Traceparent")...)
	}
	return passes
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
