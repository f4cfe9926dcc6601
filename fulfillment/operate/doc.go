// Package operate is what operators do to stock, pauses and webhooks. No step of a charge runs
// it: a worker reads what is paused, and package fulfillment handles the resends.
//
// A change is queued in the caller's batch: its commit stores the change, and a rollback leaves
// nothing of it.
//
// Tables: pauses, and stock, which is package fulfillment's.
package operate
