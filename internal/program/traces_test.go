package program_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/program"
)

// TestTraces reads the environment as a program does, so it runs alone.
func TestTraces(t *testing.T) {
	for _, variable := range os.Environ() { // a developer's own settings do not count
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	log := slog.New(slog.DiscardHandler)
	if traces, same, err := program.Traces(t.Context(), log, program.Environ(), "payonce-test"); traces != nil || same != log || err != nil {
		t.Errorf("no setting asks for traces, and there are %v, %v, %v", traces, same, err)
	}
	t.Run("an exporter that there is not refuses the start", func(t *testing.T) {
		t.Setenv("OTEL_TRACES_EXPORTER", "console")
		_, _, err := program.Traces(t.Context(), log, program.Environ(), "payonce-test")
		if err == nil || err.Error() != `OTEL_TRACES_EXPORTER is "console": set it to otlp or to none` {
			t.Errorf("refused with %v", err)
		}
	})
	t.Run("an address is enough", func(t *testing.T) {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
		traces, other, err := program.Traces(t.Context(), log, program.Environ(), "payonce-test")
		if traces == nil || other == log || err != nil {
			t.Fatalf("%v, %v, %v", traces, other, err)
		}
		traces.Close(t.Context())
	})
	t.Run("words of OpenTelemetry's are as good in capitals", func(t *testing.T) {
		t.Setenv("OTEL_TRACES_EXPORTER", "OTLP")
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "GRPC")
		t.Setenv("OTEL_TRACES_SAMPLER", "ParentBased_Always_On")
		traces, _, err := program.Traces(t.Context(), log, program.Environ(), "payonce-test")
		if traces == nil || err != nil {
			t.Fatalf("%v, %v", traces, err)
		}
		traces.Close(t.Context())
		t.Setenv("OTEL_TRACES_EXPORTER", "None")
		if traces, _, err := program.Traces(t.Context(), log, program.Environ(), "payonce-test"); traces != nil || err != nil {
			t.Errorf("no setting asks for traces, and there are %v, %v", traces, err)
		}
	})
	// The library would panic on some of them, spin on others and pass over the rest.
	for _, c := range [][2]string{
		{"OTEL_BSP_MAX_QUEUE_SIZE", "-1"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", "0"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", "100000000000000"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", "many"},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1"},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "512.5"},
		{"OTEL_BSP_SCHEDULE_DELAY", "0"},
		{"OTEL_BSP_SCHEDULE_DELAY", "-1"},
		{"OTEL_BSP_SCHEDULE_DELAY", "5s"},
		{"OTEL_BSP_SCHEDULE_DELAY", "99999999999999999999"},
		{"OTEL_BSP_EXPORT_TIMEOUT", "-1"},
	} {
		t.Run("a queue that cannot be refuses the start: "+c[0]+"="+c[1], func(t *testing.T) {
			t.Setenv("OTEL_TRACES_EXPORTER", "otlp")
			t.Setenv(c[0], c[1])
			traces, _, err := program.Traces(t.Context(), log, program.Environ(), "payonce-test")
			traces.Close(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), c[0]+" is no number between ") {
				t.Errorf("refused with %v", err)
			}
		})
	}
}
