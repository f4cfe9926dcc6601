// Package domain decides what may happen to a charge. It is pure: no clock, no
// randomness, no I/O, nothing but the standard library.
//
// A charge is the fold of its events (Evolve). Decide takes a charge and a
// command and returns the events that the command causes, or refuses with a
// sentinel; the same command again returns no events and no error. Replay is
// the fold that also checks that every event was legal where it stands.
// Postings are the double-entry legs that an event causes.
//
// Stored events are named by literals (payment.captured.v1) in codec.go; a name
// once stored is read for ever.
package domain
