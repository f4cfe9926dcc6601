// Package domain decides what may happen to a charge. It is pure: no clock, no
// randomness, no I/O, nothing but the standard library.
//
// A charge is the fold of its events (Fold). Decide takes a charge and a command and
// returns the events that the command causes, or refuses it with a sentinel; the same
// command repeated returns no events and no error. ValidateStream is the fold that also checks
// that every event was legal at its version.
//
// An event is a type with methods: its stored name, what it changes, when it is legal
// and what it posts. A step (inventory, payment, …) is one file: its events, its
// commands, and one Step value in the list of step.go. The codec, the audit, the
// timeline, the metrics and the contract test read these lists. A name once stored is
// read for ever.
package domain
