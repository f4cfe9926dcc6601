package program_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/program"
)

func TestTraces(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for name, test := range map[string]struct {
		environ map[string]string
		on      bool
	}{
		"nothing asks for traces": {nil, false},
		"an address is enough":    {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, true},
		"OpenTelemetry's own words, and in capitals": {map[string]string{
			"OTEL_TRACES_EXPORTER": "OTLP", "OTEL_EXPORTER_OTLP_PROTOCOL": "GRPC", "OTEL_TRACES_SAMPLER": "ParentBased_Always_On",
		}, true},
	} {
		traces, named, err := program.Traces(t.Context(), log, test.environ, "payonce-test")
		if err != nil || (traces != nil) != test.on || (named != log) != test.on {
			t.Errorf("%s: traces are on: %t, lines name them: %t, %v", name, traces != nil, named != log, err)
		}
		traces.Close(t.Context())
	}
}

// A refusal names the variable and repeats no value, which may hold a password. The library would pass
// over these.
func TestTraces_refusesSettings(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"OTEL_TRACES_EXPORTER", "console"},
		{"OTEL_TRACES_SAMPLER", "jaeger_remote"},
		{"OTEL_TRACES_SAMPLER", "traceidratio"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "user:private@collector:4318"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://%private"},
		{"OTEL_TRACES_SAMPLER_ARG", "1.5"},
		{"OTEL_TRACES_SAMPLER_ARG", "NaN"},
	} {
		environ := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_SAMPLER": "parentbased_traceidratio", c[0]: c[1]}
		traces, _, err := program.Traces(t.Context(), slog.New(slog.DiscardHandler), environ, "payonce-test")
		traces.Close(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), c[0]+" cannot be followed: set it to ") || strings.Contains(err.Error(), "private") {
			t.Errorf("%s=%s is refused with %v", c[0], c[1], err)
		}
	}
}
