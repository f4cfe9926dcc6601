// Package idempotency gives each key one outcome: a request that arrives twice under one key takes effect
// once, and both callers get its first answer. The key, the writes and the answer are one PostgreSQL
// transaction. Its counterpart for messages is package inbox.
//
// Receive is for a service under load: the work queues its writes on a pgx.Batch. Once wraps any function that
// writes through a pgx.Tx: on a pool, or as a part of the caller's own transaction. Middleware wraps an
// http.Handler, for the header Idempotency-Key. All three are one loop: read the key, and replay its answer; or
// try the work, which commits only if it claims the key; and read again if another request was first, or if the
// outcome of the commit is unknown. Apply Schema in a schema of the pool's search_path. For a sender that gives
// no key, NaturalKey, Window and Content derive one.
//
// # What happens
//
//	two calls at once                 one claims the key; the other waits, then replays its answer or
//	                                  returns ErrInFlight
//	another request under the key     ErrReused, with the members that differ
//	the work fails or panics          all is rolled back and the key is free; a FinalError is stored
//	the process dies                  before COMMIT as above; after it the next call replays
//	the connection is lost in COMMIT  the key says which it was; ErrUnknown if it cannot be read
//	the answer has expired            ErrExpired: the work is not done again
//
// That an effect happens once rests on a constraint of the schema and on one transaction, not on a cache, a clock, an
// isolation level or a time-out. Where commits wait for a standby, so does the read of a
// stored answer: what was replayed survives a failover.
//
// # What this does not give you
//
//   - An effect outside the transaction does not happen once. A mail or a call to another system belongs in an
//     outbox, or has an idempotency key of its own there.
//   - A replay is the first answer, not the current state.
//   - Each call of Once and Middleware holds a connection while it works. Work that takes a second one from the
//     same pool can exhaust it.
//   - If an operator ends a commit's wait for the standby, its first answer may be lost in a failover.
package idempotency

import (
	"bytes"
	"errors"
	"net/http"
	"time"
)

var (
	// ErrMissing is returned by ParseKey if there is no header.
	ErrMissing = errors.New("the idempotency key is missing")
	// ErrInvalid is returned, wrapped with the reason, for a header or a text that is not a key.
	ErrInvalid = errors.New("the idempotency key is not valid")
	// ErrReused is returned, as a *ReusedError, for a key that was used for another request.
	ErrReused = errors.New("the key was used for another request")
	// ErrExpired is returned for a key whose answer is no longer kept. The work is never done again.
	ErrExpired = errors.New("the key has expired")
	// ErrInFlight is returned if another request under the key does not end while this one may wait.
	ErrInFlight = errors.New("a request under this key is in flight")
	// ErrUnknown is returned, wrapped, when it is unknown whether the work of a key was done, or when what
	// the answer depends on could not be read. The same request again replays the answer, or does the work.
	ErrUnknown = errors.New("the outcome is unknown: call again with the same key")
)

// Answer is a finished answer, stored byte for byte.
type Answer struct {
	StatusCode int
	Header     http.Header // text; when the answer has expired, Location is left
	Body       []byte
}

// Request tells apart the requests under one key.
type Request struct {
	// Fingerprint is the same for requests that are the same, see the function of that name. An answer that
	// is stored with an empty one is replayed to any request.
	Fingerprint []byte
	// Canonical is the request as canonical JSON, see Content. It is kept as long as the answer, to name the
	// members in which another request differs; nil if it is not kept.
	Canonical []byte
}

// KeyState is what the database has of a key. Times are by its clock.
type KeyState struct {
	Key     Key
	Found   bool
	Answer  // of an expired one status code and Location are always there; ExpireKeys may have deleted the rest
	Request // that it answers

	CreatedAt, ExpiresAt time.Time
	Expired              bool
	Now                  time.Time // zero if nothing was read
}

// Result is the answer to a request, and whether it is a replay.
type Result struct {
	Answer

	ExpiresAt time.Time // by the database's clock, in whole seconds
	Replayed  bool
}

// Replay returns the stored answer if the request is the one that it answers. Else it returns a
// *ReusedError; or ErrExpired and what is kept for ever of the answer: status code and Location.
func (s KeyState) Replay(request Request) (Result, error) {
	result := Result{ExpiresAt: s.ExpiresAt, Replayed: true}
	switch same := len(s.Fingerprint) == 0 || bytes.Equal(s.Fingerprint, request.Fingerprint); {
	case !same && (s.Expired || s.Canonical == nil || request.Canonical == nil):
		return result, &ReusedError{}
	case !same:
		return result, &ReusedError{Pointers: pointers(s.Canonical, request.Canonical)}
	case s.Expired:
		result.StatusCode = s.StatusCode
		if location := s.Header.Values(headerLocation); len(location) > 0 {
			result.Header = http.Header{headerLocation: location}
		}
		return result, ErrExpired
	}
	result.Answer = s.Answer
	return result, nil
}

// ReusedError is ErrReused with JSON Pointers to the members in which the requests differ, never their values.
// There are none if the canonical requests do not differ, or one of them was not kept.
type ReusedError struct{ Pointers []string }

// Error is the text of ErrReused: pointers may hold names that a client chose.
func (e *ReusedError) Error() string { return ErrReused.Error() }

// Unwrap makes it an ErrReused.
func (e *ReusedError) Unwrap() error { return ErrReused }
