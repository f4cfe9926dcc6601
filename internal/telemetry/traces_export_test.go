package telemetry_test

import (
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/postgres/pgtest"
	"github.com/payonce/payonce/internal/telemetry"
)

// TestACollectorThatHangs: neither a span nor the end of the program waits for it,
// and no secret of the settings is told. It sets what its process is told of by
// OpenTelemetry, so it runs alone.
func TestACollectorThatHangs(t *testing.T) {
	pgtest.Long(t, "it waits for a collector")
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			var listen net.ListenConfig
			hanging, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0") // nobody accepts
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = hanging.Close() })
			endpoint := "http://user:private@" + hanging.Addr().String()
			for name, value := range map[string]string{
				"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
				"OTEL_EXPORTER_OTLP_HEADERS":  "private,private key=private,token=%zzprivate",
				"OTEL_EXPORTER_OTLP_TIMEOUT":  "500",
				"OTEL_BSP_EXPORT_TIMEOUT":     "500",
				"OTEL_BSP_SCHEDULE_DELAY":     "1",
				"OTEL_BSP_MAX_QUEUE_SIZE":     "16",
			} {
				t.Setenv(name, value)
			}
			told := &lines{}
			traces, err := telemetry.OpenTraces(t.Context(), slog.New(slog.NewJSONHandler(told, nil)), "payonce-test",
				telemetry.TraceSettings{Endpoint: endpoint, Protocol: protocol})
			if err != nil {
				t.Fatal(err)
			}
			for range 5000 { // the queue holds 16: were they to wait, each 16 would take half a second
				serve(t, traces)
			}
			traces.Close(t.Context()) // returns, although the collector never answers
			text := told.String()
			if !strings.Contains(text, "traces are exported") || !strings.Contains(text, "complains of its settings") {
				t.Errorf("it says %s", text)
			}
			if strings.Contains(text, "private") {
				t.Errorf("a secret is told: %s", text)
			}
			for line := range strings.Lines(text) {
				if !json.Valid([]byte(line)) {
					t.Errorf("a line is not JSON: %s", line)
				}
			}
		})
	}
}
