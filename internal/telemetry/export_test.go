package telemetry

import (
	"context"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// TracesTo returns traces whose spans p receives.
func TracesTo(ctx context.Context, p sdktrace.SpanProcessor, sampler sdktrace.Sampler) *Traces {
	return newTraces(ctx, "payonce-test", p, sdktrace.WithSampler(sampler))
}
