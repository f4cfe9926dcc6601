// Package domain decides what may happen to a charge. It is pure: no clock, no randomness, no I/O, nothing but the
// standard library.
//
// A charge is the fold of its events (Fold). A decision is a function that returns events: Open for a new charge, and
// methods of Charge and Refund (RequestCancel, RequestRefund, Capture, Fail, Resolve, …), which return none for what is
// recorded. A decision without a function, such as to reserve stock, is its event. Append is the fold that refuses the
// first event that the charge does not allow.
//
// An event is a type with two methods: what it changes (apply), and when it is legal (allowedIn). Postings says what it
// posts. Merchants are notified of a webhook event (EventType.Webhook). The api writes requests (EventType.Request); one
// that is stored although it is unreadable or its charge does not allow it is void, without effect (Charge.Voids). Operators see the
// members of an event that have a tag detail, under the name in the tag (Details).
//
// A step (inventory, payment, …) is one file: its events, its decisions but Fail, and one Step value in step.go's list,
// with the stored names of its events. The codec, the audit, the timeline, the metrics and the contract test read these
// lists. A name once stored is read for ever.
package domain
