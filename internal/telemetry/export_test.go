package telemetry

import (
	"context"
	"log/slog"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// TracesTo are traces whose spans are told to p.
func TracesTo(ctx context.Context, p sdktrace.SpanProcessor, sampler, arg string) (*Traces, error) {
	s, err := newSampling(sampler, arg)
	if err != nil {
		return nil, err
	}
	return newTraces(ctx, "payonce-test", s, p), nil
}

// Exporting is an exporter as the programs have it.
func Exporting(to sdktrace.SpanExporter, log *slog.Logger) sdktrace.SpanExporter {
	return &exporting{SpanExporter: to, log: log}
}
