package telemetry

import (
	"context"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Names of what spans tell beyond the conventions of OpenTelemetry.
const (
	attributeKey      = attribute.Key("payonce.idempotency.result")
	attributeType     = attribute.Key("payonce.message.type")
	attributeCharge   = attribute.Key("payonce.charge.id")
	attributeAttempt  = attribute.Key("payonce.attempt")
	attributeWaits    = attribute.Key("payonce.waits")
	attributeEnd      = attribute.Key("payonce.end")
	attributeReplayed = attribute.Key("payonce.provider.replayed")
)

// Serving begins the span of a request, and what it returns ends it with the
// answer's status and what its idempotency key led to. The span is the context's
// from then on.
//
// Parents are the request's traceparent headers. One that can be read is
// continued; whether it is recorded, we decide. The span has the route, and
// nothing that the caller has chosen: a path may hold an idempotency key.
func (t *Traces) Serving(ctx context.Context, method, route string, parents []string) (context.Context, func(status int, key string)) {
	if t == nil {
		return ctx, func(int, string) {}
	}
	if len(parents) == 1 {
		if his := remote(ctx, parents[0]); his.IsValid() {
			flags := trace.TraceFlags(0).WithSampled(t.sampling.takes(his))
			ctx = trace.ContextWithRemoteSpanContext(ctx, his.WithTraceFlags(flags))
		}
	}
	ctx, span := t.tracer.Start(ctx, method+" "+route, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		semconv.HTTPRequestMethodKey.String(method), semconv.HTTPRoute(route),
	))
	return ctx, func(status int, key string) {
		span.SetAttributes(semconv.HTTPResponseStatusCode(status))
		if key != "" {
			span.SetAttributes(attributeKey.String(key))
		}
		if status >= 500 {
			failed(span, strconv.Itoa(status))
		}
		span.End()
	}
}

// Calling begins the span of a request to the provider, and what it returns ends
// it. Status is 0 where no answer came. The provider is not told of the trace.
func (t *Traces) Calling(ctx context.Context, host, method, name string) (answered func(status int, replayed bool)) {
	if t == nil {
		return func(int, bool) {}
	}
	_, span := t.requesting(ctx, host, method, name)
	return func(status int, replayed bool) {
		if replayed {
			span.SetAttributes(attributeReplayed.Bool(true))
		}
		came(span, status)
	}
}

// Delivering begins the span of a webhook, and what it returns ends it. The
// headers tell the merchant which trace the webhook is of.
func (t *Traces) Delivering(ctx context.Context, host string) (headers map[string]string, answered func(status int)) {
	if t == nil {
		return nil, func(int) {}
	}
	ctx, span := t.requesting(ctx, host, "POST", "POST webhook")
	return t.Carry(ctx), func(status int) { came(span, status) }
}

func (t *Traces) requesting(ctx context.Context, host, method, name string) (context.Context, trace.Span) {
	return t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		semconv.HTTPRequestMethodKey.String(method), semconv.ServerAddress(host),
	))
}

func came(span trace.Span, status int) {
	if status != 0 {
		span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	}
	switch {
	case status == 0:
		failed(span, "no_answer")
	case status >= 400:
		failed(span, strconv.Itoa(status))
	}
	span.End()
}

// failed marks a span by the name of what went wrong. The text of an error may
// quote anything, so it is left to the log, whose line names the trace.
func failed(span trace.Span, what string) {
	span.SetAttributes(semconv.ErrorTypeKey.String(what))
	span.SetStatus(codes.Error, "")
}
