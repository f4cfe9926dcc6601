package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of the instrumentation.
const scope = "github.com/payonce/payonce"

// traceparent is all of a trace that one process passes to the next: two random IDs and
// whether the trace is recorded. Callers may write anything into the other headers of W3C
// Trace Context and into Baggage.
const traceparent = "traceparent"

// flushTime bounds the export of what is left when a program stops.
const flushTime = time.Second

// Traces records the spans of one program. Its methods may be called concurrently and never
// wait: a span beyond the exporter's queue is dropped. A nil *Traces is tracing that is
// off, and does nothing.
type Traces struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	sampling sampling
}

// OpenTraces begins to export spans by the settings. It returns nil where they ask for
// none. A collector that does not answer is no error.
func OpenTraces(ctx context.Context, log *slog.Logger, service string, s TraceSettings) (*Traces, error) {
	if !s.on() {
		return nil, nil //nolint:nilnil // off, as nil means
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	sampling, err := newSampling(s.Sampler, s.SamplerArg)
	if err != nil {
		return nil, err
	}
	quiet(log)
	exporter, err := s.exporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("make the exporter of traces: %w", err)
	}
	t := newTraces(ctx, service, sampling, sdktrace.NewBatchSpanProcessor(&exporting{SpanExporter: exporter, log: log}))
	log.InfoContext(ctx, "traces are exported", "protocol", s.protocol(), "sampler", strings.TrimSpace(cmp.Or(s.Sampler, defaultSampler)+" "+s.SamplerArg))
	return t, nil
}

func newTraces(ctx context.Context, service string, s sampling, p sdktrace.SpanProcessor) *Traces {
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(p),
		sdktrace.WithSampler(sdktrace.ParentBased(s.root)),
		sdktrace.WithResource(describe(ctx, service)),
	)
	return &Traces{provider: provider, tracer: provider.Tracer(scope), sampling: s}
}

// describe names the program. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win. The
// process's command line and user are left out.
func describe(ctx context.Context, service string) *resource.Resource {
	own := []attribute.KeyValue{semconv.ServiceName(service)}
	if build, ok := debug.ReadBuildInfo(); ok && build.Main.Version != "" {
		own = append(own, semconv.ServiceVersion(build.Main.Version))
	}
	// An error leaves out what could not be read.
	all, _ := resource.New(ctx, resource.WithAttributes(own...), resource.WithTelemetrySDK(), resource.WithFromEnv())
	return all
}

// Close exports the queued spans, for at most one second, whether or not ctx has ended.
func (t *Traces) Close(ctx context.Context) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // the exporter has logged what went wrong
}

// Carry returns the metadata by which the handler of a message continues the trace of ctx:
// a traceparent, or nil where there is no trace.
func (t *Traces) Carry(ctx context.Context) map[string]string {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	carried := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carried)
	return map[string]string{traceparent: carried[traceparent]}
}

// continued returns ctx with the span that a traceparent names as its parent, and with
// whether the trace is recorded. A traceparent that cannot be read changes nothing.
func (t *Traces) continued(ctx context.Context, parent string, record func(sampling, trace.SpanContext) bool) context.Context {
	of := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparent: parent}))
	if t == nil || !of.IsValid() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, of.WithTraceFlags(trace.TraceFlags(0).WithSampled(record(t.sampling, of))))
}
