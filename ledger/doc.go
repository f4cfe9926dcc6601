// Package ledger is the event store and the books: one stream of events per
// charge, appended at an expected version, and the double-entry postings that
// the events cause. It owns ledger_events and ledger_postings.
//
// It promises that an event happens once, at one version, and never changes;
// that the postings of an event are committed with it or not at all; and that
// whoever decided on an older state of a stream is refused, together with
// everything else in the same batch.
//
// It does not promise an order between streams: position is the order of
// inserts, not of commits.
package ledger
