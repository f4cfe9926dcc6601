package telemetry_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/telemetry"
)

// TestQueuesThatCannotBe: the library would panic on some of them, spin on others
// and pass over the rest in silence. It sets what its process is told of by
// OpenTelemetry, so it runs alone.
func TestQueuesThatCannotBe(t *testing.T) {
	for _, c := range [][2]string{
		{"OTEL_BSP_MAX_QUEUE_SIZE", "-1"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", "0"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", "100000000000000"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", "many private"},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1"},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "512.5"},
		{"OTEL_BSP_SCHEDULE_DELAY", "0"},
		{"OTEL_BSP_SCHEDULE_DELAY", "-1"},
		{"OTEL_BSP_SCHEDULE_DELAY", "5s"},
		{"OTEL_BSP_SCHEDULE_DELAY", "99999999999999999"},
		{"OTEL_BSP_EXPORT_TIMEOUT", "-1"},
	} {
		t.Run(c[0]+"="+c[1], func(t *testing.T) {
			t.Setenv(c[0], c[1])
			traces, err := telemetry.OpenTraces(t.Context(), slog.New(slog.DiscardHandler), "payonce-test", settings(t, "http://127.0.0.1:1"))
			traces.Close(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), c[0]+" is no") {
				t.Errorf("refused with %v", err)
			}
		})
	}
}

// TestACollectorThatRefuses: what is logged of it is short, and has neither the path
// that it is reached by nor what it has to say.
func TestACollectorThatRefuses(t *testing.T) {
	for _, protocol := range []string{"http/protobuf"} {
		collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(strings.Repeat("private ", 1<<16)))
		}))
		t.Cleanup(collector.Close)
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL+"/private/otlp")
		told := &lines{}
		traces, err := telemetry.OpenTraces(t.Context(), slog.New(slog.NewJSONHandler(told, nil)), "payonce-test",
			telemetry.TraceSettings{Endpoint: collector.URL, Protocol: protocol})
		if err != nil {
			t.Fatal(err)
		}
		serve(t, traces)
		traces.Close(t.Context())
		if text := told.String(); len(text) > 1000 || strings.Contains(text, "private") || !strings.Contains(text, "403") {
			t.Errorf("it says %.2000s", text)
		}
	}
}

func settings(t *testing.T, endpoint string) telemetry.TraceSettings {
	t.Helper()
	return telemetry.TraceSettings{Endpoint: endpoint}
}
