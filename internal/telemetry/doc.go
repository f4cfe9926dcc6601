// Package telemetry counts and times what the programs do, for Prometheus.
//
// It promises that counting never waits, that nothing a caller has chosen becomes
// a label, and that what is read from the database is read once in a while,
// whoever asks how often, within a time-out: a scrape never fails because the
// database does. Every program has a registry of its own; nothing here is global.
//
// It does not promise that counters are exact. A process that dies takes along
// what was not scraped, and a page of messages that is read again counts again.
// What must be exact is the audit's. It owns no table; the results of audits are
// internal/audit's.
package telemetry
