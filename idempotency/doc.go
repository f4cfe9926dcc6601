// Package idempotency is the idempotent receiver of requests: whoever sends a
// request twice under one key gets the first answer twice, and the work is done
// once. It owns idempotency_keys, and knows nothing of charges or of a web
// framework. Its twin for messages is package inbox.
//
// It promises that a key has one answer. The answer is inserted, finished, by
// the commit that does the work: Look first, and when the key is free, queue
// Claim as the first write of that commit. A rival's commit is refused by the
// unique key (IsTaken), or waits for it. A crash leaves nothing behind.
//
// Receiver is that loop, with all that can go wrong in it. Once is the loop for
// any function with a typed result. Look, Claim and Wait are its parts.
//
// An answer is kept until it expires by the database's clock, and swept some time
// later. Its key stays known for ever, as a tombstone: the same request is told
// that it was done and where, another one that the key was used, and neither is
// done.
//
// Where a sender gives no key, one is made of what the work is about (NaturalKey),
// of the time it is meant for (Window) or of all that the message says
// (ContentKey); an Extractor picks.
//
// It does not promise that the answer is the current state, and nothing about
// what the work does outside the commit.
package idempotency
