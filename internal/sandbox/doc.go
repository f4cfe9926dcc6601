// Package sandbox is the world outside payonce: a payment provider that speaks
// enough of Stripe's API for its Go client, and a merchant's webhook receiver,
// both with books of their own and with faults on demand. It knows nothing of
// payonce and shares no table with it, so that what it counted is a witness.
//
// It promises, as Stripe does:
//
//   - an idempotency key leads to one execution. The same key with the same
//     parameters is answered with the saved bytes, a saved 500 included; with
//     others it is refused; while the first is under way it is answered 409.
//     The saved answer, the effect and the events of it are one commit;
//   - results are saved once execution has begun. A request that is refused
//     before (validation, unknown objects, a key in use) is not saved;
//   - keys are forgotten after 24 hours (forget_keys_after) by the database's
//     clock, and are new then;
//   - an intent captures at most once, and refunds never exceed the capture;
//   - every event is kept and sent, signed, until the receiver answers 2xx.
//
// It does not promise:
//
//   - more of Stripe's API than payment intents (create, confirm, retrieve,
//     cancel, list) and refunds (create, retrieve, list). Parameters it does not
//     know are refused; automatic_payment_methods, payment_method_types,
//     return_url and use_stripe_sdk are accepted and change nothing. Objects are
//     never expanded;
//   - accounts: every sk_test_ key reaches the same books;
//   - two processes on one database: the keys in flight and the faults live in
//     memory. After a crash no key is in flight, and there are no faults. (A
//     rival on the same key is still refused by the key's unique constraint.)
//
// Faults (PUT /faults) meet requests to the provider and to the shop, never
// control calls and never the events it sends. The n-th request of a plan meets
// the n-th draw of its seed. A cut connection is cut before anything was decided
// or after all of it was committed. A drawn 500 happens before the effect or
// after it, half and half, and is saved under the key either way; an answer that
// was saved earlier is replayed and does not become a 500. A delayed request has
// its key in flight and is carried out though its client has gone.
//
// Amounts, in the books too, are in the minor units of Stripe: 5 ISK are 500.
//
// It departs from Stripe in three places. A refund of pm_card_refundFail is
// answered as failed at once instead of failing later. An intent holds up to
// 10^12 minor units instead of 99,999,999. Events are retried about every minute
// for about an hour and a half instead of for days.
//
// It owns the tables of its migrations, in a database of its own.
package sandbox
