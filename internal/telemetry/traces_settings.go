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

// TraceSettings are those of OpenTelemetry that decide whether there are traces,
// and how many. What is said of the exporter beyond them, its libraries read
// themselves. As OpenTelemetry has it, an empty value is none.
type TraceSettings struct {
	Disabled       string `env:"OTEL_SDK_DISABLED"`
	Exporter       string `env:"OTEL_TRACES_EXPORTER"`
	Endpoint       string `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`
	TracesEndpoint string `env:"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"`
	Protocol       string `env:"OTEL_EXPORTER_OTLP_PROTOCOL"`
	TracesProtocol string `env:"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"`
	Sampler        string `env:"OTEL_TRACES_SAMPLER"`
	SamplerArg     string `env:"OTEL_TRACES_SAMPLER_ARG"`
}

// on tells whether somebody wants traces: by the exporter's name, or by where they
// shall go.
func (s TraceSettings) on() bool {
	if strings.EqualFold(s.Disabled, "true") || s.Exporter == "none" {
		return false
	}
	return s.Exporter != "" || s.Endpoint != "" || s.TracesEndpoint != ""
}

func (s TraceSettings) protocol() string {
	return cmp.Or(s.TracesProtocol, s.Protocol, "http/protobuf")
}

func (s TraceSettings) sampler() string {
	return strings.TrimSpace(cmp.Or(s.Sampler, "parentbased_always_on") + " " + s.SamplerArg)
}

// check refuses what nobody here can do: a program that is told to trace and
// does not would be noticed when a trace is needed.
func (s TraceSettings) check() error {
	if s.Exporter != "" && s.Exporter != "otlp" {
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
	return nil
}

func (s TraceSettings) exporter(ctx context.Context) (sdktrace.SpanExporter, error) {
	// Neither client connects before there is something to send.
	var exporter *otlptrace.Exporter
	var err error
	if s.protocol() == "grpc" {
		exporter, err = otlptracegrpc.New(ctx)
	} else {
		exporter, err = otlptracehttp.New(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("make the exporter of traces: %w", err)
	}
	return exporter, nil
}

// sampling decides which traces are recorded.
type sampling struct {
	root    sdktrace.Sampler // of a trace that begins here
	callers bool             // may ask for less than that
}

func newSampling(name, arg string) (sampling, error) {
	kind, callers := strings.CutPrefix(cmp.Or(strings.ToLower(name), "parentbased_always_on"), "parentbased_")
	switch kind {
	case "always_on":
		return sampling{sdktrace.AlwaysSample(), callers}, nil
	case "always_off":
		return sampling{sdktrace.NeverSample(), callers}, nil
	case "traceidratio":
		ratio, err := strconv.ParseFloat(cmp.Or(arg, "1"), 64)
		if err != nil || !(ratio >= 0 && ratio <= 1) {
			return sampling{}, errors.New("OTEL_TRACES_SAMPLER_ARG is no share of all traces: set it to a number between 0 and 1")
		}
		return sampling{sdktrace.TraceIDRatioBased(ratio), callers}, nil
	}
	return sampling{}, fmt.Errorf("OTEL_TRACES_SAMPLER is %q: set it to always_on, always_off or traceidratio, or to one of these after parentbased_", name)
}

// takes tells whether a trace that a caller began is recorded. What he says of it
// can make us record less than we would of our own, never more; and since he chose
// the trace's id, the dice are thrown for another one.
func (s sampling) takes(his trace.SpanContext) bool {
	if s.callers && !his.IsSampled() {
		return false
	}
	var id trace.TraceID
	_, _ = rand.Read(id[:]) // it never fails
	return s.root.ShouldSample(sdktrace.SamplingParameters{TraceID: id}).Decision == sdktrace.RecordAndSample
}
