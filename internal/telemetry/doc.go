// Package telemetry counts and times what the programs do, for Prometheus, and records
// traces, for any collector of OTLP.
//
// # Guarantees
//
//   - Neither a metric nor a span waits. Spans beyond the queue are dropped.
//   - Nothing that a caller has chosen becomes a label or part of a span, except the IDs of
//     the caller's own trace.
//   - What the database knows is read at most every 10 s, within a time-out, however often
//     metrics are scraped. A scrape does not fail because the database does.
//   - Each program has its own registry and tracer. The only global is the log of
//     OpenTelemetry's own complaints.
//
// # Limits
//
// Counters are not exact, and not every span arrives: a process that dies loses what was
// not scraped or sent, and a page of messages that is redelivered counts twice. The audit
// is exact.
//
// Tables: none.
//
// The libraries of Prometheus and OpenTelemetry do the work; the api and the worker share the names, so it is
// a part of neither.
package telemetry
