// Package telemetry counts and times what the programs do, for Prometheus, and
// traces it, for whoever takes spans by OTLP.
//
// It promises that neither counting nor tracing waits, that nothing a caller has
// chosen becomes a label or is told by a span, but for the ids of his own trace,
// and that what is read from the database is read once in a while, whoever asks
// how often, within a time-out: a scrape never fails because the database does.
// Every program has a registry and a tracer of its own; nothing here is global but
// where OpenTelemetry's own complaints go.
//
// It does not promise that counters are exact, nor that every span arrives. A
// process that dies takes along what was not scraped or sent, and a page of
// messages that is read again counts again. What must be exact is the audit's. It
// owns no table; the results of audits are internal/audit's.
package telemetry
