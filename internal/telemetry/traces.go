package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
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

// onlyProtocol is spoken to the collector, the default of OpenTelemetry.
const onlyProtocol = "http/protobuf"

// flushTime bounds the export of what is left when a program stops.
const flushTime = time.Second

// Traces records the spans of one program. Its methods may be called concurrently and never
// wait: a span beyond the exporter's queue is dropped. A nil *Traces is tracing that is
// off, and does nothing.
type Traces struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
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
	quiet(log)
	exporter, err := otlptracehttp.New(ctx) // it connects only when there is something to send
	if err != nil {
		return nil, fmt.Errorf("make the exporter of traces: %w", err)
	}
	t := newTraces(ctx, service, sdktrace.NewBatchSpanProcessor(exporter))
	log.InfoContext(ctx, "traces are exported", "sampler", strings.TrimSpace(s.Sampler+" "+s.SamplerArg))
	return t, nil
}

// newTraces makes traces by the SDK's own environment, in which the sampler is, and the limits of
// spans and of their queue.
func newTraces(ctx context.Context, service string, p sdktrace.SpanProcessor, o ...sdktrace.TracerProviderOption) *Traces {
	provider := sdktrace.NewTracerProvider(append(o, sdktrace.WithSpanProcessor(withoutErrorText{p}), sdktrace.WithResource(describe(ctx, service)))...)
	return &Traces{provider: provider, tracer: provider.Tracer(scope)}
}

// describe names the program. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win. The
// process's command line and user are left out.
func describe(ctx context.Context, service string) *resource.Resource {
	// An error leaves out what could not be read.
	all, _ := resource.New(ctx, resource.WithAttributes(semconv.ServiceName(service)), resource.WithTelemetrySDK(), resource.WithFromEnv())
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

// continued returns ctx with the span that a traceparent names as its parent. A traceparent that
// cannot be read changes nothing.
func (t *Traces) continued(ctx context.Context, parent string) context.Context {
	of := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{traceparent: parent}))
	if t == nil || !of.IsValid() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, of.WithTraceFlags(of.TraceFlags()&trace.FlagsSampled))
}

// bounded takes the flag from a caller's span unless the sampler would record a trace that begins
// here: a caller can lower the share that is recorded, never raise it. Since the caller chose the
// trace's id, the sampler decides about another one.
func (t *Traces) bounded(ctx context.Context) context.Context {
	of := trace.SpanContextFromContext(ctx)
	if t == nil || !of.IsSampled() {
		return ctx
	}
	_, begun := t.tracer.Start(context.Background(), "", trace.WithNewRoot()) // never ended, so never exported
	return trace.ContextWithRemoteSpanContext(ctx, of.WithTraceFlags(begun.SpanContext().TraceFlags()))
}

// TraceSettings are the variables of OpenTelemetry that decide whether there are traces,
// and how many. The SDK reads these and the others itself. In OpenTelemetry an empty value is none.
type TraceSettings struct {
	// true turns traces off.
	Disabled string `env:"OTEL_SDK_DISABLED"`
	// otlp turns traces on, none turns them off. Others are refused.
	Exporter string `env:"OTEL_TRACES_EXPORTER"`
	// URL of the collector; setting it turns traces on. Empty: a collector on this machine.
	Endpoint string `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`
	// The same for traces alone, with its path.
	TracesEndpoint string `env:"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"`
	// http/protobuf, also where it is empty.
	Protocol string `env:"OTEL_EXPORTER_OTLP_PROTOCOL"`
	// The same for traces alone.
	TracesProtocol string `env:"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"`
	// Which traces are recorded: always_on, always_off, or parentbased_always_on,
	// parentbased_always_off or parentbased_traceidratio. Empty: parentbased_always_on.
	Sampler string `env:"OTEL_TRACES_SAMPLER"`
	// Share of recorded traces from 0 to 1, for the sampler of a ratio. Empty: 1.
	SamplerArg string `env:"OTEL_TRACES_SAMPLER_ARG"`
	// Milliseconds between two exports, 1 to 3600000. Empty: 5000.
	Delay string `env:"OTEL_BSP_SCHEDULE_DELAY"`
	// Milliseconds that an export may take, up to 3600000. Empty: 30000. 0 sets no bound.
	ExportTimeout string `env:"OTEL_BSP_EXPORT_TIMEOUT"`
	// Spans that wait for an export, 1 to 1000000. One more is dropped. Empty: 2048.
	QueueSize string `env:"OTEL_BSP_MAX_QUEUE_SIZE"`
	// Spans in one export, 1 to 1000000. Empty: 512.
	BatchSize string `env:"OTEL_BSP_MAX_EXPORT_BATCH_SIZE"`
}

// on reports whether traces are asked for: by the exporter's name, or by an endpoint.
func (s TraceSettings) on() bool {
	if strings.EqualFold(s.Disabled, "true") || strings.EqualFold(s.Exporter, "none") {
		return false
	}
	return s.Exporter != "" || s.Endpoint != "" || s.TracesEndpoint != ""
}

// Bounds of the queue of spans. The SDK would allocate a queue of any length, and poll without a pause.
const (
	longestQueue = 1_000_000 // spans: a gigabyte or so
	longestDelay = 3_600_000 // milliseconds
)

// check refuses settings that cannot be followed: a program that traces nothing would be
// noticed only when a trace is needed. A value is not repeated: a URL may hold a password.
func (s TraceSettings) check() error {
	byRatio := strings.EqualFold(s.Sampler, "parentbased_traceidratio")
	ratio, err := strconv.ParseFloat(cmp.Or(s.SamplerArg, "1"), 64)
	samplers := []string{"", "always_on", "always_off", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}
	for _, c := range []struct {
		ok         bool
		name, need string
	}{
		{s.Exporter == "" || strings.EqualFold(s.Exporter, "otlp"), "OTEL_TRACES_EXPORTER", "otlp or none"},
		{strings.EqualFold(cmp.Or(s.TracesProtocol, s.Protocol, onlyProtocol), onlyProtocol), "OTEL_EXPORTER_OTLP_PROTOCOL", onlyProtocol},
		{isURL(s.Endpoint), "OTEL_EXPORTER_OTLP_ENDPOINT", "a URL such as http://collector:4318"},
		{isURL(s.TracesEndpoint), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "a URL such as http://collector:4318/v1/traces"},
		{slices.Contains(samplers, strings.ToLower(s.Sampler)), "OTEL_TRACES_SAMPLER", "one of " + strings.Join(samplers[1:], ", ")},
		{!byRatio || err == nil && ratio >= 0 && ratio <= 1, "OTEL_TRACES_SAMPLER_ARG", "a share of all traces between 0 and 1"},
		{isWithin(s.Delay, 1, longestDelay), "OTEL_BSP_SCHEDULE_DELAY", "a number between 1 and 3600000"},
		{isWithin(s.ExportTimeout, 0, longestDelay), "OTEL_BSP_EXPORT_TIMEOUT", "a number between 0 and 3600000"},
		{isWithin(s.QueueSize, 1, longestQueue), "OTEL_BSP_MAX_QUEUE_SIZE", "a number between 1 and 1000000"},
		{isWithin(s.BatchSize, 1, longestQueue), "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "a number between 1 and 1000000"},
	} {
		if !c.ok {
			return fmt.Errorf("%s cannot be followed: set it to %s", c.name, c.need)
		}
	}
	return nil
}

func isURL(text string) bool {
	u, err := url.Parse(text)
	return text == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func isWithin(text string, least, most int) bool {
	n, err := strconv.Atoi(text)
	return text == "" || err == nil && n >= least && n <= most
}
