// Package intake accepts: it turns a valid request under an idempotency key
// into one commit that holds the key with its finished answer, the events, their
// postings and the outbox message. It owns no table.
//
// It promises that the commit is all or nothing, that a key accepts once, and
// that every later request under the key gets the first answer, byte for byte. A
// program that dies anywhere leaves either everything or nothing, so the client
// simply sends again. What intake cannot settle it refuses as ErrUnavailable:
// it never answers success for what may not be there.
package intake
