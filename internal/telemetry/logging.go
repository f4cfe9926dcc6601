package telemetry

import (
	"context"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
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

// complaintInterval is how often a complaint of OpenTelemetry is logged, such as that the collector is
// away.
const complaintInterval = time.Minute

// quiet makes the errors of OpenTelemetry lines of the program's log. Its other lines, which would be
// no JSON and quote settings, secrets among them, are dropped.
func quiet(log *slog.Logger) {
	otel.SetLogger(logr.Discard())
	sometimes := rate.Sometimes{First: 1, Interval: complaintInterval}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		sometimes.Do(func() { log.Warn("spans are lost", "error", brief(err)) })
	}))
}
