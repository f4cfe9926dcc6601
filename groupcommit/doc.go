// Package groupcommit commits batches that arrive at the same moment as one transaction, so
// that they share one flush of the log. It needs pgx and the standard library.
//
// A Batcher queues calls while others are in flight; the next call carries out everything
// that is queued. A Statement declares a write that may share a transaction, its form for
// several rows, and the row that it locks. An Order lists them in lock order; its Join makes
// one batch of several.
package groupcommit
