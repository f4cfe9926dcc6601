package httpapi

// RequestTimeout bounds what a request waits for.
var RequestTimeout = &requestTimeout

// HoldsCard reports whether a text holds what may be a card number.
func HoldsCard(s string) bool { return holdsCard(s) }

// Problem is a refusal.
type Problem = problem //nolint:errname // the name in the contract
