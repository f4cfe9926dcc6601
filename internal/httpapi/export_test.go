package httpapi

// RequestTimeout bounds what a request waits for.
var RequestTimeout = &requestTimeout

// ClientBehind finds the address of a client behind proxies.
var ClientBehind = clientBehind

// HoldsCard reports whether a text holds what may be a card number.
func HoldsCard(s string) bool { return holdsCard(s) }

// Problem is a refusal.
type Problem = problem //nolint:errname // the name in the contract
