package telemetry

import (
	"context"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/payonce/payonce/internal/testrun"
)

// Patient makes scrapes wait for the database for as long as figures may take, on
// however busy a machine.
func (r *Registry) Patient(figures time.Duration) {
	r.figuresTimeout, r.scrapeTimeout = figures, 2*testrun.Stall
}

// TracesTo returns traces whose spans p receives.
func TracesTo(ctx context.Context, p sdktrace.SpanProcessor, sampler sdktrace.Sampler) *Traces {
	return newTraces(ctx, "payonce-test", p, sdktrace.WithSampler(sampler))
}
