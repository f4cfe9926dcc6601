package app_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/app"
)

// TestTraces reads the environment as a program does, so it runs alone.
func TestTraces(t *testing.T) {
	for _, variable := range os.Environ() { // a developer's own settings do not count
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	log := slog.New(slog.DiscardHandler)
	if traces, same, err := app.Traces(t.Context(), log, "payonce-test"); traces != nil || same != log || err != nil {
		t.Errorf("nobody wants traces, and there are %v, %v, %v", traces, same, err)
	}
	t.Run("an exporter that there is not refuses the start", func(t *testing.T) {
		t.Setenv("OTEL_TRACES_EXPORTER", "console")
		_, _, err := app.Traces(t.Context(), log, "payonce-test")
		if err == nil || err.Error() != `OTEL_TRACES_EXPORTER is "console": set it to otlp or to none` {
			t.Errorf("refused with %v", err)
		}
	})
	t.Run("an address is enough", func(t *testing.T) {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
		traces, other, err := app.Traces(t.Context(), log, "payonce-test")
		if traces == nil || other == log || err != nil {
			t.Fatalf("%v, %v, %v", traces, other, err)
		}
		traces.Close(t.Context())
	})
}
