package telemetry

import (
	"context"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Attempt is one attempt at a message.
type Attempt struct {
	Receiver  string
	MessageID string
	Type      string // of the message
	Charge    string // the id of the charge that it is about
	Number    int    // from 1
	Waits     int    // for something outside, before this attempt
	Metadata  map[string]string
}

// Attempting begins the span of an attempt, and what it returns ends it with the
// end of the attempt. The span goes on with the trace that the message brought,
// whichever process began it and however often it was tried before; a message that
// brought none begins one.
func (t *Traces) Attempting(ctx context.Context, a Attempt) (context.Context, func(end string, failure bool)) {
	if t == nil {
		return ctx, func(string, bool) {}
	}
	if parent := remote(ctx, a.Metadata[traceparent]); parent.IsValid() {
		flags := trace.TraceFlags(0).WithSampled(t.sampling.goesOn(parent))
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent.WithTraceFlags(flags))
	}
	ctx, span := t.tracer.Start(ctx, "process "+a.Receiver, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		semconv.MessagingSystemKey.String("postgresql"),
		semconv.MessagingOperationTypeProcess,
		semconv.MessagingOperationName("process"),
		semconv.MessagingDestinationName(a.Receiver),
		semconv.MessagingMessageID(a.MessageID),
		attributeType.String(a.Type),
		attributeCharge.String(a.Charge),
		attributeAttempt.Int(a.Number),
		attributeWaits.Int(a.Waits),
	))
	return ctx, func(end string, failure bool) {
		span.SetAttributes(attributeEnd.String(end))
		if failure {
			failed(span, end)
		}
		span.End()
	}
}

// Stepping begins the span of a step, and what it returns ends it. A step that had
// nothing to do, and asked nobody, leaves none.
func (t *Traces) Stepping(ctx context.Context, step string) (context.Context, func(did bool, err error)) {
	if t == nil {
		return ctx, func(bool, error) {}
	}
	ctx, span := t.tracer.Start(ctx, step)
	return ctx, func(did bool, err error) {
		if recorded, ok := span.(sdktrace.ReadOnlySpan); !did && (!ok || recorded.ChildSpanCount() == 0) {
			return // never ended, so never exported
		}
		if err != nil { // the attempt's span tells how bad that is
			span.SetAttributes(attributeEnd.String("unfinished"))
		}
		span.End()
	}
}
