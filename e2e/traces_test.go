package e2e_test

import (
	"crypto/rand"
	"encoding/hex"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
)

// TestTraces reads the spans of real programs, as a collector gets them.
func TestTraces(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"a charge is one trace from its request to the webhook": oneTrace,
		"whoever takes over goes on with the trace":             traceTakenOver,
		"a collector that is away or hangs costs nothing":       noCollector,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			long(t)
			test(t)
		})
	}
}

// caller is a span of whoever sends a request.
type caller struct{ trace, span string }

func newCaller() caller {
	var ids [24]byte
	_, _ = rand.Read(ids[:]) // it never fails
	ids[16] |= 0xa0          // a letter: digits alone could pass for a card number
	return caller{hex.EncodeToString(ids[:16]), hex.EncodeToString(ids[16:])}
}

func (c caller) headers() http.Header {
	return http.Header{"Traceparent": {"00-" + c.trace + "-" + c.span + "-01"}}
}

// outsiders stands between the workers and the outside, and notes the traces that
// the outside is told of.
type outsiders struct {
	server *httptest.Server
	behind atomic.Pointer[httputil.ReverseProxy]

	mu   sync.Mutex
	told map[string][]string // traceparents, by path
}

func newOutsiders(t *testing.T) *outsiders {
	t.Helper()
	o := &outsiders{told: map[string][]string{}}
	o.server = httptest.NewServer(o)
	t.Cleanup(o.server.Close)
	return o
}

func (o *outsiders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	o.told[r.URL.Path] = append(o.told[r.URL.Path], r.Header.Values("Traceparent")...)
	o.mu.Unlock()
	o.behind.Load().ServeHTTP(w, r)
}

// traced is a world whose programs are traced. All that its workers ask of the
// outside passes the outsiders.
func traced(t *testing.T, s setup, c *traceCollector) (*world, *outsiders) {
	t.Helper()
	o := newOutsiders(t)
	s.apiEnv = c.settings()
	s.workerEnv = c.settings()
	s.workerEnv["STRIPE_API_BASE"] = o.server.URL
	s.alone = true
	w := newWorld(t, s)
	sandbox, err := url.Parse(w.sandbox.URL())
	if err != nil {
		t.Fatal(err)
	}
	o.behind.Store(httputil.NewSingleHostReverseProxy(sandbox))
	w.register(t, merchant, w.keys.api, o.server.URL+"/shop/webhooks", nil)
	return w, o
}

// sendFrom sends an order as a part of the caller's trace.
func (w *world) sendFrom(t *testing.T, from caller, key string, o order, more http.Header) charge {
	t.Helper()
	header := from.headers()
	maps.Copy(header, more)
	got, _, err := w.client.insist(t.Context(), request{key: key, body: o.body(t), header: header})
	if err != nil {
		t.Fatal(err)
	}
	return acceptedCharge(t, got)
}

func oneTrace(t *testing.T) {
	t.Helper()
	c := newTraceCollector(t)
	w, o := traced(t, setup{apis: 1, workers: 1, told: true}, c)
	from, key, private := newCaller(), "key-"+unique(), "private-"+unique()
	order := newOrder(visa)
	order.Metadata = map[string]string{"note": private}
	accepted := w.sendFrom(t, from, key, order, http.Header{"Tracestate": {"vendor=" + private}, "Baggage": {"user=" + private}})
	replay, _, err := w.client.insist(t.Context(), request{key: key, body: order.body(t), header: newCaller().headers()})
	if err != nil || replay.Header.Get("Idempotent-Replayed") != "true" {
		t.Fatalf("answered %d %s, %v, want a replay", replay.Status, replay.Body, err)
	}
	w.await(t, accepted.ID)

	served := c.await(t, from.trace, "span of the request", func(s span) bool { return s.name == "POST /v1/charges" })
	if served.parent != from.span || served.kind != otlp.Span_SPAN_KIND_SERVER || served.service != "payonce-api" {
		t.Errorf("the request's span is %+v, want one under %s", served, from.span)
	}
	c.under(t, served, "batch start") // the commit
	carried := c.under(t, served, "process fulfillment")
	if carried.kind != otlp.Span_SPAN_KIND_CONSUMER || carried.service != "payonce-worker" ||
		carried.tells["payonce.charge.id"] != `"`+accepted.ID+`"` || carried.tells["payonce.end"] != `"done"` {
		t.Errorf("the message's span is %+v", carried)
	}
	c.under(t, carried, "inventory")
	payment := c.await(t, from.trace, "start of the payment", func(s span) bool {
		return s.parent == carried.id && s.name == "payment"
	})
	called := c.await(t, from.trace, "call of the provider", func(s span) bool { return s.name == "POST payment_intents" })
	if called.parent != payment.id || called.kind != otlp.Span_SPAN_KIND_CLIENT || called.failed {
		t.Errorf("the provider's span is %+v, want one under %+v", called, payment)
	}
	c.await(t, from.trace, "confirmation", func(s span) bool { return s.name == "POST payment_intents/id/confirm" })
	told := c.under(t, c.under(t, carried, "process notification"), "POST webhook")

	o.mu.Lock()
	if diff := cmp.Diff([]string{"00-" + from.trace + "-" + told.id + "-01"}, o.told["/shop/webhooks"]); diff != "" {
		t.Errorf("the merchant was told of other traces (-want +got):\n%s", diff)
	}
	for path, traces := range o.told {
		if path != "/shop/webhooks" && len(traces) > 0 {
			t.Errorf("%s was told of %q", path, traces)
		}
	}
	o.mu.Unlock()

	// The provider's own events begin traces of their own, which lead to a message.
	eventually(t, "the provider's event is traced to the attempt that it caused", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.ContainsFunc(c.spans, func(s span) bool {
			return s.name == "POST /v1/webhooks/stripe" && slices.ContainsFunc(c.spans, func(under span) bool {
				return under.name == "process fulfillment" && under.parent == s.id
			})
		})
	})
	w.calm(t)
	w.stopAll(t)
	w.tracesAreDiscreet(t, c, key, order.OrderID, private, order.PaymentMethod)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.parent == "" && s.kind != otlp.Span_SPAN_KIND_SERVER && s.kind != otlp.Span_SPAN_KIND_CONSUMER {
			t.Errorf("a look for work leaves a span: %+v", s)
		}
		if !strings.HasPrefix(s.service, "payonce-") {
			t.Errorf("a span is of %q: %+v", s.service, s)
		}
	}
	logged, err := os.ReadFile(filepath.Join(w.log, "api-0.log"))
	if err != nil || !strings.Contains(string(logged), `"trace_id":"`+from.trace+`"`) {
		t.Errorf("no line of the api names the trace, %v", err)
	}
}

// stopAll stops the services, which lets go of the last spans.
func (w *world) stopAll(t *testing.T) {
	t.Helper()
	for _, p := range slices.Concat(w.workers, w.apis) {
		stop(t, p)
		restart(t, p)
	}
}

// tracesAreDiscreet looks for what must be neither in a span nor, with a trace, in
// a message.
func (w *world) tracesAreDiscreet(t *testing.T, c *traceCollector, secrets ...string) {
	t.Helper()
	secrets = append(secrets, w.keys.api, w.keys.provider, w.keys.shop, w.keys.events, databasePassword, merchant, "tshirt")
	secrets = append(secrets, rows[string](t, w, "select data ->> 'payment_intent' from ledger_events where type = 'payment.started.v1'")...)
	exported := c.all()
	for _, secret := range secrets {
		if at := strings.Index(exported, secret); at >= 0 {
			t.Errorf("a span tells %q: …%s…", secret, exported[max(at-200, 0):min(at+200, len(exported))])
		}
	}
	const metadata = `
select metadata::text
  from outbox
 union all
select metadata::text
  from inbox`
	for _, kept := range rows[string](t, w, metadata) {
		if strings.Contains(kept, "private-") || strings.Contains(kept, "tracestate") || strings.Contains(kept, "baggage") {
			t.Errorf("a message keeps more of a trace than its ids: %s", kept)
		}
	}
}

func traceTakenOver(t *testing.T) {
	t.Helper()
	c := newTraceCollector(t)
	w := newWorld(t, setup{apis: 1, workers: 2, gated: true, alone: true, apiEnv: c.settings(), workerEnv: c.settings()})
	stop(t, w.workers[1])
	died := make(chan error, 1)
	planned := make(chan struct{}, 1)
	planned <- struct{}{}
	w.gates.set(func(p passage) bool {
		if p.call != "confirm" || p.side != after {
			return true
		}
		select {
		case <-planned:
			died <- w.workers[0].Kill()
			return false
		default:
			return true
		}
	})
	from := newCaller()
	accepted := w.sendFrom(t, from, "key-"+unique(), newOrder(visa), nil)
	if err := next(t, "the worker comes to the point where it dies", died); err != nil {
		t.Fatal(err)
	}
	restart(t, w.workers[1])
	w.await(t, accepted.ID)

	served := c.await(t, from.trace, "span of the request", func(s span) bool { return s.name == "POST /v1/charges" })
	resumed := c.under(t, served, "process fulfillment")
	if resumed.tells["payonce.attempt"] != "int_value:2" {
		t.Errorf("the message's span is %+v, want the second attempt's", resumed)
	}
	c.await(t, from.trace, "look at the intent", func(s span) bool { return s.name == "GET payment_intents/id" })
	c.under(t, c.under(t, resumed, "process notification"), "POST webhook")
}

func noCollector(t *testing.T) {
	t.Helper()
	var listen net.ListenConfig
	hanging, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hanging.Close() })
	sent := func(to string) map[string]string {
		return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": to, "OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_BSP_MAX_QUEUE_SIZE": "64"}
	}
	w := newWorld(t, setup{
		apis: 1, workers: 1,
		apiEnv: sent("http://" + hanging.Addr().String()), workerEnv: sent("http://127.0.0.1:1"),
	})
	w.flowing(t, 40, 8, visa, cardDeclined).finish(t, w)
	const untraced = `
select count(*)
  from outbox
 where not metadata ? 'traceparent'`
	if n := row[int64](t, w, untraced); n != 0 {
		t.Errorf("%d messages carry no trace", n)
	}
	eventually(t, "the worker says that its spans are lost", func() bool {
		logged, err := os.ReadFile(filepath.Join(w.log, "worker-0.log"))
		return err == nil && strings.Contains(string(logged), "spans are lost until the collector takes them")
	})
}
