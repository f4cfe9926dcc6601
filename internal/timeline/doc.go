// Package timeline tells what happened to a charge: key, events, outbox, inbox,
// the provider's objects, webhook, in the order of the database's clock. It owns
// no table, writes nothing and decides nothing.
//
// It promises that Read shows one snapshot, and that what it cannot read, such as
// an event of a newer program, is shown as such and hides nothing else.
//
// It does not promise completeness. Retention removes outbox and inbox rows;
// replays of a key leave no trace anywhere; a message does not tell when it was
// parked; and a key whose request was refused names no charge, so it is found by
// the key alone. A merchant's description and metadata and the messages' payloads
// are left out.
//
// Nor does it promise to be quick: tables have no index for questions that nobody
// else asks, so it reads a merchant's keys and the inbox whole, and for a refund's
// id all events.
package timeline
