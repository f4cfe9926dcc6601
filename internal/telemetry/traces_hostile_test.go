package telemetry_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/payonce/payonce/internal/telemetry"
)

// TestACollectorThatRefuses: what is logged of it is one short line, however often
// it refuses and whatever it says, without the path that it is reached by. It sets
// what its process is told of by OpenTelemetry, so it runs alone.
func TestACollectorThatRefuses(t *testing.T) {
	partly, err := proto.Marshal(&coltracepb.ExportTraceServiceResponse{PartialSuccess: &coltracepb.ExportTracePartialSuccess{
		RejectedSpans: 1, ErrorMessage: "too many" + strings.Repeat(" and more", 1<<10),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		status int
		kind   string
		body   []byte
		says   string
	}{
		"all":  {http.StatusForbidden, "text/plain", []byte("a key is missing" + strings.Repeat(" and more", 1<<16)), "403 Forbidden (body: a key is missing"},
		"some": {http.StatusOK, "application/x-protobuf", partly, "OTLP partial success: too many"},
	} {
		t.Run(name, func(t *testing.T) {
			collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", c.kind)
				w.WriteHeader(c.status)
				_, _ = w.Write(c.body)
			}))
			t.Cleanup(collector.Close)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL+"/private/otlp")
			t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1") // each span is a request
			told := &lines{}
			traces, err := telemetry.OpenTraces(t.Context(), slog.New(slog.NewJSONHandler(told, nil)), "payonce-test",
				telemetry.TraceSettings{Endpoint: collector.URL})
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				serve(t, traces)
			}
			traces.Close(t.Context())
			text := told.String()
			if strings.Count(text, "\n") != 2 || len(text) > 1000 || strings.Contains(text, "private") || !strings.Contains(text, c.says) {
				t.Errorf("it says %.2000s", text)
			}
		})
	}
}
