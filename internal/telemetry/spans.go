package telemetry

import (
	"context"
	"strconv"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Serving begins the span of a request, and what it returns ends it with the answer's
// status and what its idempotency key led to. The returned context has the span.
//
// parents are the request's traceparent headers. One that can be read is continued; the
// sampler decides whether it is recorded. The span has the route and nothing that the
// caller has chosen: a path may hold an idempotency key.
func (t *Traces) Serving(ctx context.Context, method, route string, parents []string) (context.Context, func(status int, key string)) {
	if len(parents) == 1 {
		ctx = t.bounded(t.continued(ctx, parents[0]))
	}
	ctx, span := t.start(ctx, method+" "+route, trace.SpanKindServer,
		semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(route))
	return ctx, func(status int, key string) {
		span.SetAttributes(semconv.HTTPResponseStatusCode(status))
		if key != "" {
			span.SetAttributes(attribute.String("payonce.idempotency.result", key))
		}
		if status >= 500 {
			failed(span, strconv.Itoa(status))
		}
		span.End()
	}
}

// Attempt is one attempt at a message.
type Attempt struct {
	Receiver  string
	MessageID string
	Type      string // of the message
	Charge    string // the ID of the charge that it is about
	Number    int    // from 1
	Waits     int    // for an external service, before this attempt
	Metadata  map[string]string
}

// Attempting begins the span of an attempt, and what it returns ends it with the end of the
// attempt. The span continues the trace that the message carries, however often it was
// tried; a message without a trace begins one.
func (t *Traces) Attempting(ctx context.Context, a Attempt) (context.Context, func(end string, failure bool)) {
	ctx = t.continued(ctx, a.Metadata[traceparent])
	ctx, span := t.start(ctx, "process "+a.Receiver, trace.SpanKindConsumer,
		semconv.MessagingSystemKey.String("postgresql"),
		semconv.MessagingOperationTypeProcess,
		semconv.MessagingOperationName("process"),
		semconv.MessagingDestinationName(a.Receiver),
		semconv.MessagingMessageID(a.MessageID),
		attribute.String("payonce.message.type", a.Type),
		attribute.String("payonce.charge.id", a.Charge),
		attribute.Int("payonce.attempt", a.Number),
		attribute.Int("payonce.waits", a.Waits),
	)
	return ctx, func(end string, failure bool) {
		span.SetAttributes(attribute.String("payonce.end", end))
		if failure {
			failed(span, end)
		}
		span.End()
	}
}

// Calling begins the span of a request to the provider, and what it returns ends it.
// status is 0 where no answer came. The provider does not receive the trace.
func (t *Traces) Calling(ctx context.Context, host, method, name string) (answered func(status int, replayed bool)) {
	_, span := t.start(ctx, name, trace.SpanKindClient, semconv.HTTPRequestMethodKey.String(method), semconv.ServerAddress(host))
	return func(status int, replayed bool) {
		if replayed {
			span.SetAttributes(attribute.Bool("payonce.provider.replayed", true))
		}
		switch {
		case status == 0:
			failed(span, "no_answer")
		case status >= 400:
			failed(span, strconv.Itoa(status))
		}
		if status > 0 {
			span.SetAttributes(semconv.HTTPResponseStatusCode(status))
		}
		span.End()
	}
}

// start begins a span, which records nothing where tracing is off.
func (t *Traces) start(ctx context.Context, name string, kind trace.SpanKind, attributes ...attribute.KeyValue) (context.Context, trace.Span) {
	if t == nil {
		return ctx, noop.Span{}
	}
	return t.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attributes...))
}

// failed marks a span with the name of a failure. The text of an error may quote anything,
// so it stays in the log, whose line names the trace.
func failed(span trace.Span, what string) {
	span.SetAttributes(semconv.ErrorTypeKey.String(what))
	span.SetStatus(codes.Error, "")
}

// Statements returns the tracer of a pool, or nil where tracing is off.
//
// A statement has a span if it runs under a recorded one, so a poll leaves none. Spans have the text of
// the SQL and never its parameters; of an error they have the SQLSTATE.
func (t *Traces) Statements() pgx.QueryTracer {
	if t == nil {
		return nil
	}
	return otelpgx.NewTracer(
		otelpgx.WithTracerProvider(t.provider),
		otelpgx.WithDisableConnectionDetailsInAttributes(), // the user's name
	)
}

// withoutErrorText exports spans without events and without status texts: a library writes errors there, which
// may quote a row.
type withoutErrorText struct{ sdktrace.SpanProcessor }

func (w withoutErrorText) OnEnd(s sdktrace.ReadOnlySpan) {
	w.SpanProcessor.OnEnd(spanWithoutErrorText{s})
}

type spanWithoutErrorText struct{ sdktrace.ReadOnlySpan }

func (spanWithoutErrorText) Events() []sdktrace.Event { return nil }

func (s spanWithoutErrorText) Status() sdktrace.Status {
	return sdktrace.Status{Code: s.ReadOnlySpan.Status().Code}
}
