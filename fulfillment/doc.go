// Package fulfillment carries an accepted charge through its steps: inventory,
// payment, and, as a receiver of its own, notification. It owns stock and
// reservations.
//
// A message is a wake-up. The stream is the truth, the recovery point and, by
// its version, the fence: each step looks at the charge, does what is missing,
// and records it with the effects in one commit. So a message may come in any
// order and any number of times, and a holder may die anywhere; who takes over
// folds the stream and goes on where it ends.
//
// It promises that stock is taken once, that the provider takes the money at
// most once and never for a failed charge, and that the merchant is told about
// every outcome at least once under one webhook id. It promises nothing about
// how long that takes: what is outside is waited for.
//
// No transaction is open and no connection is held during a call to the outside.
package fulfillment
