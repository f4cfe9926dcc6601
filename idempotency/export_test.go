package idempotency

// What tests see of the package.
var (
	Canonical = canonicalOf
	Pointers  = pointers
)
