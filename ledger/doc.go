// Package ledger is the event store and the books: one stream of events per
// charge, appended at an expected version, and the double-entry postings that
// the events cause. It owns ledger_events and ledger_postings. What is read of
// them across charges it projects: into charge_list and account_balances, which it
// owns too, with the checkpoint in projections.
//
// It promises that an event happens once, at one version, and never changes;
// that the postings of an event are committed with it or not at all; and that
// whoever decided on an older state of a stream is refused, together with
// everything else in the same batch. Each event is folded once into the
// projections, behind every transaction that could still come before it, and
// Rebuild makes them again, byte for byte.
//
// It does not promise an order between streams: position is the order of
// inserts, not of commits. The list of charges follows the ledger by a moment;
// streams and balances are of now.
package ledger
