package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/internal/testrun"
)

const (
	callerTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	callerSpan  = "00f067aa0ba902b7"
	sampled     = "00-" + callerTrace + "-" + callerSpan + "-01"
	unsampled   = "00-" + callerTrace + "-" + callerSpan + "-00"
)

var all = sdktrace.ParentBased(sdktrace.AlwaysSample()) // the default

// record returns traces and what they have recorded.
func record(t *testing.T, sampler sdktrace.Sampler) (*telemetry.Traces, *tracetest.SpanRecorder) {
	t.Helper()
	r := tracetest.NewSpanRecorder()
	traces := telemetry.TracesTo(t.Context(), r, sampler)
	t.Cleanup(func() { traces.Close(t.Context()) })
	return traces, r
}

func names(spans []sdktrace.ReadOnlySpan) []string {
	var all []string
	for _, s := range spans {
		all = append(all, s.Name())
	}
	return all
}

func attributes(s sdktrace.ReadOnlySpan) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes() {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

// serve traces one request and returns what its messages carry.
func serve(t *testing.T, traces *telemetry.Traces, parents ...string) string {
	t.Helper()
	ctx, served := traces.Serving(t.Context(), "POST", "/v1/charges", parents)
	carried := traces.Carry(ctx)
	served(202, "first")
	if len(carried) > 1 {
		t.Errorf("more than a traceparent is carried: %v", carried)
	}
	return carried["traceparent"]
}

func TestServing(t *testing.T) {
	t.Parallel()
	traces, recorded := record(t, all)
	serve(t, traces, sampled)
	span := recorded.Ended()[0]
	testrun.Same(t, "span", "POST /v1/charges under "+callerSpan, span.Name()+" under "+span.Parent().SpanID().String())
	testrun.Same(t, "attributes", map[string]string{
		"http.request.method": "POST", "http.route": "/v1/charges", "http.response.status_code": "202", "payonce.idempotency.result": "first",
	}, attributes(span))
	// A header that is no traceparent begins a new trace.
	zero := strings.Replace(sampled, callerTrace, strings.Repeat("0", 32), 1)
	for _, parents := range [][]string{nil, {"nonsense"}, {sampled, sampled}, {sampled + "-more"}, {strings.ToUpper(sampled)}, {zero}} {
		if carried := serve(t, traces, parents...); len(carried) != len(sampled) || strings.Contains(carried, callerTrace) {
			t.Errorf("%.80q leads to %s", parents, carried)
		}
	}
}

// TestSampling shows that a caller can lower the share of recorded traces, never raise it, and that a
// message follows its sender.
func TestSampling(t *testing.T) {
	t.Parallel()
	const requests = 400
	none, some := sdktrace.ParentBased(sdktrace.NeverSample()), sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.1))
	for name, c := range map[string]struct {
		sampler     sdktrace.Sampler
		parent      string
		least, most int
	}{
		"all, of no caller":         {all, "", requests, requests},
		"none, of a sampled caller": {none, sampled, 0, 0},
		// All requests have the same trace ID, so the sampler decides by another one.
		"a tenth, of a sampled caller":     {some, sampled, 1, requests / 2},
		"a tenth, of an unsampled caller":  {some, unsampled, 0, 0},
		"always, whatever the caller says": {sdktrace.AlwaysSample(), unsampled, requests, requests},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			traces, recorded := record(t, c.sampler)
			var flags int
			for range requests {
				if strings.HasSuffix(serve(t, traces, c.parent), "-01") {
					flags++
				}
			}
			if n := len(recorded.Ended()); n < c.least || n > c.most || n != flags {
				t.Errorf("%d of %d are recorded, and %d messages carry the flag; want %d to %d", n, requests, flags, c.least, c.most)
			}
		})
	}
	for parent, want := range map[string]int{unsampled: 0, sampled: 1} {
		worker, recorded := record(t, none)
		_, attempted := worker.Attempting(t.Context(), telemetry.Attempt{Metadata: map[string]string{"traceparent": parent}})
		attempted("done", false)
		if n := len(recorded.Ended()); n != want {
			t.Errorf("a message with %s: %d spans, want %d", parent, n, want)
		}
	}
}

func TestAttempting(t *testing.T) {
	t.Parallel()
	traces, recorded := record(t, all)
	message := telemetry.Attempt{
		Receiver: "fulfillment", MessageID: "m1", Type: "charge.requested.v1", Charge: "ch_1", Number: 2, Waits: 1,
		Metadata: map[string]string{"traceparent": sampled, "tracestate": "vendor=private"},
	}
	ctx, attempted := traces.Attempting(t.Context(), message)
	traces.Calling(ctx, "api.stripe.com", "GET", "GET refunds")(200, true)
	traces.Calling(ctx, "api.stripe.com", "POST", "POST payment_intents")(0, false)
	traces.Calling(ctx, "api.stripe.com", "GET", "GET account")(503, false)
	attempted("failed", true)

	spans := recorded.Ended()
	want := []string{"GET refunds", "POST payment_intents", "GET account", "process fulfillment"}
	testrun.Same(t, "spans", want, names(spans))
	if len(spans) != len(want) {
		t.FailNow()
	}
	wantAttributes := []map[string]string{
		{"http.request.method": "GET", "server.address": "api.stripe.com", "http.response.status_code": "200", "payonce.provider.replayed": "true"},
		{"http.request.method": "POST", "server.address": "api.stripe.com", "error.type": "no_answer"},
		{"http.request.method": "GET", "server.address": "api.stripe.com", "http.response.status_code": "503", "error.type": "503"},
		{
			"messaging.system": "postgresql", "messaging.operation.type": "process", "messaging.operation.name": "process",
			"messaging.destination.name": "fulfillment", "messaging.message.id": "m1", "payonce.message.type": "charge.requested.v1",
			"payonce.charge.id": "ch_1", "payonce.attempt": "2", "payonce.waits": "1", "payonce.end": "failed", "error.type": "failed",
		},
	}
	for i, span := range spans {
		testrun.Same(t, span.Name(), wantAttributes[i], attributes(span))
		if text := fmt.Sprint(span.Status(), span.Events(), span.SpanContext().TraceState()); strings.Contains(text, "private") {
			t.Errorf("%s has %s", span.Name(), text)
		}
	}
}

// A span has neither parameters nor the text of an error, and a statement outside of a
// recorded span has none.
func TestStatements_holdNoValues(t *testing.T) {
	t.Parallel()
	traces, recorded := record(t, all)
	tracer := traces.Statements()
	const sql = "select a from t where b = $1"
	run := func(ctx context.Context, err error) {
		ctx = tracer.TraceQueryStart(ctx, nil, pgx.TraceQueryStartData{SQL: sql, Args: []any{"private"}})
		tracer.TraceQueryEnd(ctx, nil, pgx.TraceQueryEndData{Err: err})
	}
	run(t.Context(), nil)
	if n := len(recorded.Ended()); n != 0 {
		t.Errorf("%d spans of a statement outside of a trace", n)
	}
	ctx, served := traces.Serving(t.Context(), "POST", "/v1/charges", nil)
	run(ctx, nil)
	run(ctx, fmt.Errorf("read private: %w", &pgconn.PgError{Code: "23505", Message: "private", Detail: "private", ConstraintName: "once"}))
	run(ctx, errors.New("private"))
	batches, ok := tracer.(pgx.BatchTracer)
	if !ok {
		t.Fatal("batches are not traced")
	}
	b := &pgx.Batch{}
	b.Queue(sql, "private")
	within := batches.TraceBatchStart(ctx, nil, pgx.TraceBatchStartData{Batch: b})
	batches.TraceBatchQuery(within, nil, pgx.TraceBatchQueryData{SQL: sql, Args: []any{"private"}})
	batches.TraceBatchQuery(within, nil, pgx.TraceBatchQueryData{SQL: sql, Args: []any{"private"}, Err: errors.New("private")})
	batches.TraceBatchEnd(within, nil, pgx.TraceBatchEndData{Err: errors.New("private")})
	served(500, "")

	want := []string{"SELECT", "SELECT", "SELECT", "SELECT", "SELECT", "batch start", "POST /v1/charges"}
	testrun.Same(t, "spans", want, names(recorded.Ended()))
	for _, span := range recorded.Ended() {
		if text := fmt.Sprint(span.Attributes(), span.Events(), span.Status()); strings.Contains(text, "private") {
			t.Errorf("%s has %s", span.Name(), text)
		}
	}
	if code := attributes(recorded.Ended()[1])["pgx.sql_state"]; code != "23505" {
		t.Errorf("a refusal has the SQLSTATE %q", code)
	}
}

// Traces that are off do nothing, and cost no tracer of a pool and no other logger.
func TestOpenTraces_off(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for name, s := range map[string]telemetry.TraceSettings{
		"by default":                  {Sampler: "always_on"},
		"by the name of the exporter": {Exporter: "None", Endpoint: "http://127.0.0.1:4318"},
		"by the switch of the whole":  {Disabled: "TRUE", Exporter: "otlp"},
	} {
		traces, err := telemetry.OpenTraces(t.Context(), log, "payonce-test", s)
		if traces != nil || err != nil {
			t.Fatalf("%s: %v, %v", name, traces, err)
		}
	}
	var off *telemetry.Traces
	ctx, attempted := off.Attempting(t.Context(), telemetry.Attempt{Metadata: map[string]string{"traceparent": sampled}})
	off.Calling(ctx, "host", "GET", "GET refunds")(200, false)
	attempted("done", false)
	off.Close(t.Context())
	if carried := serve(t, off, sampled); carried != "" || off.Statements() != nil || off.Log(log) != log {
		t.Errorf("%q is carried", carried)
	}
}
