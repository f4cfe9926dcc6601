package telemetry

import (
	"context"
	"log/slog"
	"regexp"
	"strings"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Log returns a logger whose lines name their trace, if it is recorded.
func (t *Traces) Log(log *slog.Logger) *slog.Logger {
	if t == nil {
		return log
	}
	return slog.New(naming{log.Handler()})
}

// naming adds the IDs of the trace and the span of the line's context.
type naming struct{ slog.Handler }

func (n naming) Handle(ctx context.Context, line slog.Record) error {
	if of := trace.SpanContextFromContext(ctx); of.IsSampled() {
		line = line.Clone()
		line.AddAttrs(slog.String("trace_id", of.TraceID().String()), slog.String("span_id", of.SpanID().String()))
	}
	return n.Handler.Handle(ctx, line)
}

func (n naming) WithAttrs(attrs []slog.Attr) slog.Handler { return naming{n.Handler.WithAttrs(attrs)} }

func (n naming) WithGroup(name string) slog.Handler { return naming{n.Handler.WithGroup(name)} }

// exporting logs once that the collector fails, and once that it is back. One goroutine at
// a time calls it.
type exporting struct {
	sdktrace.SpanExporter
	log  *slog.Logger
	away bool
}

func (e *exporting) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && !e.away:
		e.log.Warn("spans are lost until the collector takes them", "error", brief(err))
	case err == nil && e.away:
		e.log.Info("the collector takes spans again")
	}
	e.away = err != nil
	return nil // it is logged
}

const longestReason = 200 // bytes

// brief shortens an error to fit into a line. It leaves out URLs, whose path may be a secret
// of the collector's.
func brief(err error) string {
	text := regexp.MustCompile(`https?://[^\s"]+`).ReplaceAllString(err.Error(), "the collector")
	if len(text) > longestReason {
		text = strings.ToValidUTF8(text[:longestReason], "") + "…"
	}
	return text
}

// quiet makes the errors of OpenTelemetry lines of the program's log. Its other lines, which would be
// no JSON and quote settings, secrets among them, are dropped.
func quiet(log *slog.Logger) {
	otel.SetLogger(logr.Discard())
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("opentelemetry failed", "error", brief(err))
	}))
}
