package e2e_test

import (
	"encoding/hex"
	"io"
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
)

// traceCollector takes the spans of the programs, by OTLP over HTTP.
type traceCollector struct {
	server *httptest.Server

	mu    sync.Mutex
	spans []span
	text  strings.Builder // all that came, as text
}

// span is what a test looks at.
type span struct {
	service    string
	trace      string
	id         string
	parent     string
	name       string
	kind       otlp.Span_SpanKind
	failed     bool
	attributes map[string]string // as text
}

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
				c.spans = append(c.spans, span{
					service:    service,
					trace:      hex.EncodeToString(s.GetTraceId()),
					id:         hex.EncodeToString(s.GetSpanId()),
					parent:     hex.EncodeToString(s.GetParentSpanId()),
					name:       s.GetName(),
					kind:       s.GetKind(),
					failed:     s.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR,
					attributes: attributesOf(s.GetAttributes()),
				})
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
	return slices.DeleteFunc(slices.Clone(c.spans), func(s span) bool { return s.trace != trace })
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
	return c.await(t, parent.trace, name+" under "+parent.name, func(s span) bool { return s.name == name && s.parent == parent.id })
}
