package telemetry_test

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/internal/testrun"
)

func TestMain(m *testing.M) { testrun.Main(m) }

// through opens traces to a collector, records spans, closes, and returns the log. It sets
// the process's log of OpenTelemetry, so its callers do not run in parallel.
func through(t *testing.T, settings telemetry.TraceSettings, spans int) string {
	t.Helper()
	log := &testrun.Log{}
	traces, err := telemetry.OpenTraces(t.Context(), slog.New(slog.NewJSONHandler(log, nil)), "payonce-test", settings)
	testdb.Must(t, err)
	for range spans {
		serve(t, traces)
	}
	traces.Close(t.Context()) // returns, also if the collector never answers
	return log.String()
}

// Of refusals one after the other the first is logged, in a short line without the collector's path.
func TestOpenTraces_logsARefusalOnce(t *testing.T) {
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "a key is missing"+strings.Repeat(" and more", 1<<12), http.StatusForbidden)
	}))
	t.Cleanup(collector.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL+"/private/otlp")
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1") // each span is a request
	text := through(t, telemetry.TraceSettings{Endpoint: collector.URL}, 5)
	if len(text) > 1000 || strings.Contains(text, "private") || strings.Count(text, "403 Forbidden (body: a key is missing") != 1 || strings.Count(text, "\n") != 2 {
		t.Errorf("logged %.2000s", text)
	}
}

// Neither a span nor the end of the program waits for a collector that hangs, and no secret
// of the settings is logged.
func TestOpenTraces_waitsForNoCollector(t *testing.T) {
	testrun.Long(t, "it waits for a collector")
	var listen net.ListenConfig
	hanging, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0") // and never accepts
	testdb.Must(t, err)
	t.Cleanup(func() { _ = hanging.Close() })
	endpoint := "http://user:private@" + hanging.Addr().String()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "private,private key=private,token=%zzprivate")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "500")
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "500")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
	// The queue holds 16: if spans waited, each 16 would take half a second.
	text := through(t, telemetry.TraceSettings{Endpoint: endpoint}, 5000)
	if !strings.Contains(text, "traces are exported") {
		t.Errorf("logged %s", text)
	}
	if strings.Contains(text, "private") {
		t.Errorf("a secret is logged: %s", text)
	}
	for line := range strings.Lines(text) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a line is not JSON: %s", line)
		}
	}
}
