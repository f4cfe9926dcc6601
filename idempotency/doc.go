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
// It does not promise that the answer is the current state, nor that a key stays
// known after it expired; a reuse after that is told apart, not run again.
package idempotency
