package e2e_test

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testrun"
)

// caller is the span of a client.
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

// TestTraces_followACharge reads the spans of the programs, as an OpenTelemetry
// collector gets them.
func TestTraces_followACharge(t *testing.T) {
	t.Parallel()
	startsPrograms(t)
	c := newTraceCollector(t)
	d := deploy(t, setup{
		apis: 1, workers: 2, gated: true, oneMerchant: true, providerEvents: true, apiEnv: c.settings(), workerEnv: c.settings(),
	})
	from, key, private := newCaller(), "key-"+unique(), "private-"+unique()
	order := newOrder("pm_saved_ada")
	order.Customer = "cus_ada"
	order.Metadata = map[string]string{"note": private}
	header := from.headers()
	maps.Copy(header, http.Header{"Tracestate": {"vendor=" + private}, "Baggage": {"user=" + private}})
	accepted := acceptedCharge(t, d.insist(t, request{key: key, body: order.body(t), header: header}))
	replay, err := d.client.insist(t.Context(), request{key: key, body: order.body(t), header: newCaller().headers()})
	if err != nil || replay.Header.Get("Idempotent-Replayed") != "true" {
		t.Fatalf("answered %d %s, %v, want a replay", replay.Status, replay.Body, err)
	}
	d.await(t, accepted.ID)

	served := c.await(t, from.trace, "span of the request", func(s span) bool { return s.GetName() == "POST /v1/charges" })
	if served.parent() != from.span || served.GetKind() != otlp.Span_SPAN_KIND_SERVER || served.service != "payonce-api" {
		t.Errorf("the request's span is %+v, want one under %s", served, from.span)
	}
	c.under(t, served, "batch start") // the commit
	carried := c.under(t, served, "process fulfillment")
	attributes := attributesOf(carried.GetAttributes())
	if carried.GetKind() != otlp.Span_SPAN_KIND_CONSUMER || carried.service != "payonce-worker" ||
		attributes["payonce.charge.id"] != `"`+accepted.ID+`"` || attributes["payonce.end"] != `"done"` {
		t.Errorf("the message's span is %+v", carried)
	}
	c.under(t, carried, "inventory")
	payment := c.await(t, from.trace, "start of the payment", func(s span) bool {
		return s.parent() == carried.id() && s.GetName() == "payment"
	})
	called := c.await(t, from.trace, "call of the provider", func(s span) bool { return s.GetName() == "POST payment_intents" })
	if called.parent() != payment.id() || called.GetKind() != otlp.Span_SPAN_KIND_CLIENT || called.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR {
		t.Errorf("the provider's span is %+v, want one under %+v", called, payment)
	}
	c.await(t, from.trace, "confirmation", func(s span) bool { return s.GetName() == "POST payment_intents/id/confirm" })
	notified := c.under(t, c.under(t, carried, "process notification"), "POST webhook")

	want := []string{"00-" + from.trace + "-" + notified.id() + "-01"}
	_, traces := d.gates.forwarded()
	testrun.Same(t, "traces sent to the provider and the shop", want, traces)

	// The provider's own events begin traces of their own, which lead to a message.
	await.True(t, "the provider's event is traced to the attempt that it caused", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.ContainsFunc(c.spans, func(s span) bool {
			return s.GetName() == "POST /v1/webhooks/stripe" && slices.ContainsFunc(c.spans, func(under span) bool {
				return under.GetName() == "process fulfillment" && under.parent() == s.id()
			})
		})
	})
	d.drain(t)
	restart(t, d.services()...) // which lets go of the last spans
	c.pollsAreUntraced(t)
	d.tracesAreDiscreet(t, c, key, order.OrderID, private, order.PaymentMethod, order.Customer)
	if !bytes.Contains(d.log(t, "api-1"), []byte(`"trace_id":"`+from.trace+`"`)) {
		t.Error("no line of the api names the trace")
	}
}

// pollsAreUntraced: a span belongs to a program, and begins with a request or a message, or
// is a worker's question at its start whose key it has.
func (c *traceCollector) pollsAreUntraced(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.parent() == "" && s.GetName() != "GET account" && s.GetKind() != otlp.Span_SPAN_KIND_SERVER && s.GetKind() != otlp.Span_SPAN_KIND_CONSUMER {
			t.Errorf("a poll leaves a span: %+v", s)
		}
		if !strings.HasPrefix(s.service, "payonce-") {
			t.Errorf("a span is of %q: %+v", s.service, s)
		}
	}
}

// tracesAreDiscreet looks for what must be neither in a span nor, with a trace, in
// a message.
func (d *deployment) tracesAreDiscreet(t *testing.T, c *traceCollector, secrets ...string) {
	t.Helper()
	secrets = append(secrets, d.Secrets.API, d.Secrets.Provider, d.Secrets.Shop, d.Secrets.Events, databasePassword, merchant, "tshirt")
	secrets = append(secrets, rows[string](t, d, "select data ->> 'payment_intent' from ledger_events where type = 'payment.started.v1'")...)
	exported := c.all()
	for _, secret := range secrets {
		if at := strings.Index(exported, secret); at >= 0 {
			t.Errorf("a span has %q: …%s…", secret, exported[max(at-200, 0):min(at+200, len(exported))])
		}
	}
	for _, kept := range rows[string](t, d, `select metadata::text from outbox union all select metadata::text from inbox`) {
		if strings.Contains(kept, "private-") || strings.Contains(kept, "tracestate") || strings.Contains(kept, "baggage") {
			t.Errorf("a message keeps more of a trace than its ids: %s", kept)
		}
	}
}

// traceCollector takes the spans of the programs, by OTLP over HTTP.
type traceCollector struct {
	server *httptest.Server

	mu    sync.Mutex
	spans []span
	text  strings.Builder // all that came, as text
}

// span is one of a program.
type span struct {
	*otlp.Span
	service string
}

func (s span) trace() string  { return hex.EncodeToString(s.GetTraceId()) }
func (s span) id() string     { return hex.EncodeToString(s.GetSpanId()) }
func (s span) parent() string { return hex.EncodeToString(s.GetParentSpanId()) }

func newTraceCollector(t *testing.T) *traceCollector {
	t.Helper()
	c := &traceCollector{}
	c.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := c.take(r); err != nil {
			t.Errorf("spans that cannot be read: %v", err)
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(c.server.Close)
	return c
}

// settings make a program send its spans here, at once.
func (c *traceCollector) settings() map[string]string {
	return map[string]string{
		"OTEL_TRACES_EXPORTER":        "otlp",
		"OTEL_EXPORTER_OTLP_ENDPOINT": c.server.URL,
		"OTEL_BSP_SCHEDULE_DELAY":     "20",
	}
}

func (c *traceCollector) take(r *http.Request) error {
	sent, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	var request collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(sent, &request); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text.WriteString(prototext.Format(&request))
	for _, program := range request.GetResourceSpans() {
		service := strings.Trim(attributesOf(program.GetResource().GetAttributes())["service.name"], `"`)
		for _, scope := range program.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, span{s, service})
			}
		}
	}
	return nil
}

func attributesOf(list []*common.KeyValue) map[string]string {
	attributes := map[string]string{}
	for _, a := range list {
		attributes[a.GetKey()] = strings.TrimPrefix(prototext.MarshalOptions{}.Format(a.GetValue()), "string_value:")
	}
	return attributes
}

// of are the spans of a trace that have come so far.
func (c *traceCollector) of(trace string) []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.spans), func(s span) bool { return s.trace() != trace })
}

// all is everything that came, as text.
func (c *traceCollector) all() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// await waits for a span of a trace, and returns the first.
func (c *traceCollector) await(t *testing.T, trace, what string, is func(span) bool) span {
	t.Helper()
	var found span
	if !await.Within(await.Stall, func() bool {
		spans := c.of(trace)
		at := slices.IndexFunc(spans, is)
		if at >= 0 {
			found = spans[at]
		}
		return at >= 0
	}) {
		t.Fatalf("no %s in trace %s, which has %+v", what, trace, c.of(trace))
	}
	return found
}

// under waits for a span of this name under another.
func (c *traceCollector) under(t *testing.T, parent span, name string) span {
	t.Helper()
	return c.await(t, parent.trace(), name+" under "+parent.GetName(), func(s span) bool { return s.GetName() == name && s.parent() == parent.id() })
}
