package postgres

// ErrNotReplicated is the outcome of a commit that is durable on the primary alone.
var ErrNotReplicated = errNotReplicated
