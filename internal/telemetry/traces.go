package telemetry

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
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

// TraceSettings are the variables of OpenTelemetry that decide whether there are traces,
// and how many. The exporter's libraries read the others themselves. In OpenTelemetry an
// empty value is none.
type TraceSettings struct {
	// true turns traces off.
	Disabled string `env:"OTEL_SDK_DISABLED"`
	// otlp turns traces on, none turns them off. Others are refused.
	Exporter string `env:"OTEL_TRACES_EXPORTER"`
	// URL of the collector; setting it turns traces on. Empty: a collector on this machine.
	Endpoint string `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`
	// The same for traces alone, with its path.
	TracesEndpoint string `env:"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"`
	// http/protobuf or grpc. Empty: http/protobuf.
	Protocol string `env:"OTEL_EXPORTER_OTLP_PROTOCOL"`
	// The same for traces alone.
	TracesProtocol string `env:"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"`
	// always_on, always_off or traceidratio, or one of these after parentbased_. Empty:
	// parentbased_always_on.
	Sampler string `env:"OTEL_TRACES_SAMPLER"`
	// Share of recorded traces from 0 to 1. Empty: 1.
	SamplerArg string `env:"OTEL_TRACES_SAMPLER_ARG"`
	// Milliseconds between two exports.
	Delay string `env:"OTEL_BSP_SCHEDULE_DELAY"`
	// Milliseconds that an export may take.
	ExportTimeout string `env:"OTEL_BSP_EXPORT_TIMEOUT"`
	// Spans that wait for an export. One more is dropped.
	QueueSize string `env:"OTEL_BSP_MAX_QUEUE_SIZE"`
	// Spans in one export.
	BatchSize string `env:"OTEL_BSP_MAX_EXPORT_BATCH_SIZE"`
}

// on reports whether traces are asked for: by the exporter's name, or by an endpoint.
func (s TraceSettings) on() bool {
	if strings.EqualFold(s.Disabled, "true") || strings.EqualFold(s.Exporter, "none") {
		return false
	}
	return s.Exporter != "" || s.Endpoint != "" || s.TracesEndpoint != ""
}

func (s TraceSettings) protocol() string {
	return strings.ToLower(cmp.Or(s.TracesProtocol, s.Protocol, "http/protobuf"))
}

// check refuses settings that cannot be followed: a program that traces nothing would be
// noticed only when a trace is needed.
func (s TraceSettings) check() error {
	if s.Exporter != "" && !strings.EqualFold(s.Exporter, "otlp") {
		return fmt.Errorf("OTEL_TRACES_EXPORTER is %q: set it to otlp or to none", s.Exporter)
	}
	if p := s.protocol(); p != "http/protobuf" && p != "grpc" {
		return fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q: set it to http/protobuf or to grpc", p)
	}
	for name, endpoint := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": s.Endpoint, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": s.TracesEndpoint,
	} {
		// The URL is not repeated: it may hold a password.
		if u, err := url.Parse(endpoint); err != nil || endpoint != "" && (u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
			return fmt.Errorf("%s is no URL: write it as http://collector:4318", name)
		}
	}
	return s.checkQueue()
}

// Bounds of the queue of spans. The library would allocate a queue of any length, and
// poll without a pause.
const (
	longestQueue = 1_000_000 // spans: a gigabyte or so
	longestDelay = 3_600_000 // milliseconds
)

func (s TraceSettings) checkQueue() error {
	for _, n := range []struct {
		name, value string
		least, most int
	}{
		{"OTEL_BSP_SCHEDULE_DELAY", s.Delay, 1, longestDelay},
		{"OTEL_BSP_EXPORT_TIMEOUT", s.ExportTimeout, 0, longestDelay}, // 0 is none
		{"OTEL_BSP_MAX_QUEUE_SIZE", s.QueueSize, 1, longestQueue},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", s.BatchSize, 1, longestQueue},
	} {
		if i, err := strconv.Atoi(cmp.Or(n.value, strconv.Itoa(n.most))); err != nil || i < n.least || i > n.most {
			return fmt.Errorf("%s is no number between %d and %d: set it to one, or leave it out", n.name, n.least, n.most)
		}
	}
	return nil
}

// exporter connects only when there is something to send.
func (s TraceSettings) exporter(ctx context.Context) (*otlptrace.Exporter, error) {
	if s.protocol() == "grpc" {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}

const defaultSampler = "parentbased_always_on"

// sampling decides which traces are recorded.
type sampling struct {
	root    sdktrace.Sampler // of a trace that begins here
	callers bool             // a caller's unset flag is respected
	always  bool             // all messages or none are recorded, whatever their flags
}

func newSampling(name, arg string) (sampling, error) {
	kind, callers := strings.CutPrefix(cmp.Or(strings.ToLower(name), defaultSampler), "parentbased_")
	switch kind {
	case "always_on":
		return sampling{sdktrace.AlwaysSample(), callers, !callers}, nil
	case "always_off":
		return sampling{sdktrace.NeverSample(), callers, !callers}, nil
	case "traceidratio":
		ratio, err := strconv.ParseFloat(cmp.Or(arg, "1"), 64)
		if err != nil || !(ratio >= 0 && ratio <= 1) {
			return sampling{}, errors.New("OTEL_TRACES_SAMPLER_ARG is no share of all traces: set it to a number between 0 and 1")
		}
		return sampling{sdktrace.TraceIDRatioBased(ratio), callers, false}, nil
	}
	return sampling{}, fmt.Errorf("OTEL_TRACES_SAMPLER is %q: set it to always_on, always_off or traceidratio, or to one of these after parentbased_", name)
}

// takes reports whether a trace that a caller began is recorded. A caller can lower the
// share that is recorded, never raise it; and since the caller chose the trace's ID, the
// sampler decides by another one.
func (s sampling) takes(caller trace.SpanContext) bool {
	if s.callers && !caller.IsSampled() {
		return false
	}
	var id trace.TraceID
	_, _ = rand.Read(id[:]) // it never fails
	return s.records(id)
}

// continues reports whether the worker records a trace that the sender of a message began.
// By ratio the sender has decided: a second decision would leave hardly a whole trace.
func (s sampling) continues(sender trace.SpanContext) bool {
	if s.always {
		return s.records(sender.TraceID())
	}
	return sender.IsSampled()
}

func (s sampling) records(id trace.TraceID) bool {
	return s.root.ShouldSample(sdktrace.SamplingParameters{TraceID: id}).Decision == sdktrace.RecordAndSample
}
