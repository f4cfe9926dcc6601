package telemetry

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of the instrumentation.
const scope = "github.com/payonce/payonce"

// traceparent is the only thing of a trace that is carried from one process to
// the next: two random ids and whether the trace is recorded. What else W3C Trace
// Context and Baggage know, callers fill with what they like.
const traceparent = "traceparent"

// flushTime bounds the export of what is left when a program stops.
const flushTime = time.Second

// Traces are the spans of one program. Its methods are called by many at once and
// never wait: a span that the exporter has no room for is dropped. A nil *Traces
// is tracing that is off, and does nothing.
type Traces struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	sampling sampling
}

// OpenTraces begins to export spans as the settings say. It is nil where they say
// that there shall be none. A collector that does not answer refuses nothing.
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
		return nil, err
	}
	t := newTraces(ctx, service, sampling, sdktrace.NewBatchSpanProcessor(&exporting{SpanExporter: exporter, log: log}))
	log.InfoContext(ctx, "traces are exported", "protocol", s.protocol(), "sampler", s.sampler())
	return t, nil
}

func newTraces(ctx context.Context, service string, s sampling, p sdktrace.SpanProcessor) *Traces {
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(p),
		sdktrace.WithSampler(sdktrace.ParentBased(s.root)),
		sdktrace.WithResource(about(ctx, service)),
	)
	return &Traces{provider: provider, tracer: provider.Tracer(scope), sampling: s}
}

// about tells which program it is. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
// win. Of the process it tells nothing: its command line and its user are nobody's
// business.
func about(ctx context.Context, service string) *resource.Resource {
	own := resource.NewSchemaless(semconv.ServiceName(service))
	if build, ok := debug.ReadBuildInfo(); ok && build.Main.Version != "" {
		own = resource.NewSchemaless(semconv.ServiceName(service), semconv.ServiceVersion(build.Main.Version))
	}
	// An error leaves out what could not be read.
	set, _ := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithFromEnv())
	if all, err := resource.Merge(own, set); err == nil {
		return all
	}
	return own
}

// Close exports what is left, for at most one second, whether or not ctx has ended.
func (t *Traces) Close(ctx context.Context) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // the exporter has told what went wrong
}

// Carry is what a message takes along, so that whoever handles it goes on with
// the trace of ctx: a traceparent, nil where there is none.
func (t *Traces) Carry(ctx context.Context) map[string]string {
	if t == nil || !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	carried := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carried)
	return map[string]string{traceparent: carried.Get(traceparent)}
}

// remote is the span that a traceparent names, invalid if it names none.
func remote(ctx context.Context, parent string) trace.SpanContext {
	found := propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: parent})
	if of := trace.SpanContextFromContext(found); of.IsRemote() {
		return of
	}
	return trace.SpanContext{}
}
