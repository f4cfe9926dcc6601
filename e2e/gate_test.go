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
	*failpoint.Call
	name string // create, confirm, cancel, retrieve, webhook
}

// gates stand between the workers and the provider, and before the shop. They show every
// request on both sides to the guard, and cut off those that it does not let pass.
type gates struct {
	url string

	mu    sync.Mutex
	guard func(passage) bool
	calls []string // that were forwarded
}

func newGates(t *testing.T, upstream string) *gates {
	t.Helper()
	g := &gates{}
	g.open()
	gate, err := failpoint.NewGate(t.Context(), upstream, func() failpoint.CallHook { return g.pass })
	must(t, err)
	t.Cleanup(gate.Close)
	g.url = gate.URL()
	return g
}

// set replaces the guard, and forgets what was forwarded so far. The guard is called
// concurrently.
func (g *gates) set(guard func(passage) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.guard, g.calls = guard, nil
}

// once does something at the first passage of a call, which passes if it returns true.
func (g *gates) once(call string, side failpoint.Side, do func() (passes bool)) {
	var once sync.Once
	g.set(func(p passage) (passes bool) {
		passes = true
		if p.name == call && p.Side == side {
			once.Do(func() { passes = do() })
		}
		return passes
	})
}

// open lets everything pass.
func (g *gates) open() { g.set(func(passage) bool { return true }) }

// forwarded are the calls that were forwarded, in order.
func (g *gates) forwarded() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.calls)
}

func (g *gates) pass(c *failpoint.Call) failpoint.Fault {
	g.mu.Lock()
	guard := g.guard
	g.mu.Unlock()
	name := nameOf(c.Request)
	if !guard(passage{c, name}) {
		return failpoint.Cut
	}
	if c.Side == failpoint.Before {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.calls = append(g.calls, name)
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
