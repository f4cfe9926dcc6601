package telemetry

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// TraceSettings are the variables of OpenTelemetry that decide whether there are traces,
// and how many. The exporter's libraries read the others themselves. In OpenTelemetry an
// empty value is none.
type TraceSettings struct {
	Disabled       string `env:"OTEL_SDK_DISABLED"`
	Exporter       string `env:"OTEL_TRACES_EXPORTER"`
	Endpoint       string `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`
	TracesEndpoint string `env:"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"`
	Protocol       string `env:"OTEL_EXPORTER_OTLP_PROTOCOL"`
	TracesProtocol string `env:"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"`
	Sampler        string `env:"OTEL_TRACES_SAMPLER"`
	SamplerArg     string `env:"OTEL_TRACES_SAMPLER_ARG"`
	Delay          string `env:"OTEL_BSP_SCHEDULE_DELAY"`
	ExportTimeout  string `env:"OTEL_BSP_EXPORT_TIMEOUT"`
	QueueSize      string `env:"OTEL_BSP_MAX_QUEUE_SIZE"`
	BatchSize      string `env:"OTEL_BSP_MAX_EXPORT_BATCH_SIZE"`
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
