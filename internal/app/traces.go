package app

import (
	"context"
	"log/slog"

	"github.com/payonce/payonce/internal/config"
	"github.com/payonce/payonce/internal/telemetry"
)

// Traces begins to trace a program as OpenTelemetry's own settings say, and
// returns its logger, whose lines then name their traces. Without a word from them
// there are no traces, and the logger is the same.
func Traces(ctx context.Context, log *slog.Logger, service string) (*telemetry.Traces, *slog.Logger, error) {
	settings, err := config.Load[telemetry.TraceSettings]()
	if err != nil {
		return nil, nil, err
	}
	traces, err := telemetry.OpenTraces(ctx, log, service, settings)
	if err != nil {
		return nil, nil, err
	}
	return traces, traces.Log(log), nil
}
