// Package fulfillment processes what was accepted: a charge through its steps to the
// outcome, its cancellation, every refund of it, and what follows an outcome, such as the
// merchant's webhook. It owns stock and reservations. What operators do is in package operate.
//
// # Steps
//
// A message is a wake-up. The stream is the truth and the recovery point. Its version
// refuses a decision on an old state. One loop (run.go) loads the stream, runs the step that
// is due, and commits its decision together with everything that belongs to it. So messages may
// arrive in any order and any number of times, and a worker may die anywhere: the next
// one folds the stream and continues. An event of the provider is a wake-up too; the
// worker asks the provider and believes nothing that the event says. The list of
// steps is in step.go, that of subscribers in notification.go; docs/how-to/add-a-step.md adds one.
//
// # Guarantees
//
//   - Stock is taken once.
//   - The provider takes the money at most once, and never for a failed or canceled charge.
//   - A refund returns its money at most once.
//   - The merchant receives the webhook of every webhook event at least once, under one id.
//
// # Limits
//
//   - It promises nothing about how long a step takes: it waits for external services.
//   - A worker that is suspended between its read of the provider's list of refunds and
//     its request for longer than the provider keeps idempotency keys, and then sends the
//     request, may refund twice. docs/reference/provider.md has every situation.
//
// No transaction is open and no connection is held during a call to an external service.
//
// Tables: stock, reservations.
package fulfillment
