// Package fulfillment carries what was accepted: a charge through inventory and
// payment to its outcome, its cancellation, every refund of it, and, as a
// receiver of its own, the notification of each outcome. It owns stock and
// reservations.
//
// A message is a wake-up. The stream is the truth, the recovery point and, by
// its version, the fence: each step looks at the charge, does what is missing,
// and records it with the effects in one commit. So a message may come in any
// order and any number of times, and a holder may die anywhere; who takes over
// folds the stream and goes on where it ends. An event of the provider's is a
// wake-up too, and nothing that it says is believed.
//
// It promises that stock is taken once, that the provider takes the money at
// most once and never for a failed or canceled charge, that a refund gives its
// money back at most once, and that the merchant is told about every outcome at
// least once under one webhook id. It promises nothing about how long that
// takes: what is outside is waited for.
//
// The limit of the promise about refunds: a holder that stands still between its
// look at the provider's list and its send for longer than the provider
// remembers keys, and then sends. docs/provider.md has every situation.
//
// No transaction is open and no connection is held during a call to the outside.
package fulfillment
