// Package idempotency gives each key one outcome: a request that arrives twice under one key takes effect
// once, and both callers get its first answer. The key, the writes and the answer are one PostgreSQL
// transaction. Its counterpart for messages is package inbox.
//
// Receive is for a service under load: the work queues its writes on a pgx.Batch. Once wraps any function that
// writes through a pgx.Tx. Middleware wraps an http.Handler, for the header Idempotency-Key. All three are one loop
// (replayOrTry in receive.go). NaturalKey and Content derive keys.
//
// # What happens
//
//	two calls at once                 one claims the key; the other waits, then replays its answer or
//	                                  returns ErrInFlight
//	another request under the key     ErrReused; Receive names what differs
//	the work fails or panics          all is rolled back and the key is free; a FinalError is stored
//	the process dies                  before COMMIT as above; after it the next call replays
//	the connection is lost in COMMIT  the key says which it was; ErrUnknown if it cannot be read
//	the answer has expired            ErrExpired: the work is not done again
//
// Test: TestPromises. That an effect happens once rests on a constraint of the schema and on one transaction, not on a
// cache, a clock, an isolation level or a time-out. Where commits wait for a standby, so does the read of a stored
// answer: what was replayed survives a failover.
//
// # What this does not give you
//
//   - An effect outside the transaction does not happen once: a call to another system needs an outbox or a key.
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

// Ask for these errors by errors.Is.
var (
	ErrMissing  = errors.New("the idempotency key is missing")   // of ParseKey
	ErrInvalid  = errors.New("the idempotency key is not valid") // wrapped with the reason
	ErrReused   = errors.New("the key was used for another request")
	ErrExpired  = errors.New("the key has expired")
	ErrInFlight = errors.New("a request under this key is in flight") // and does not end within Options.Wait
	// It is not groupcommit's: an outcome is unknown, a read failed, or many races were lost. The same request finds out.
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
	// Differs, beside ErrReused, has JSON Pointers to the members in which the canonical requests differ, never
	// their values. There are none if one of the requests was not kept.
	Differs []string
}

// replay returns the stored answer if the request is the one that it answers, else ErrReused. With ErrExpired it
// returns what is kept for ever of the answer: status code and Location.
func (s KeyState) replay(request Request) (Result, error) {
	result := Result{ExpiresAt: s.ExpiresAt, Replayed: true}
	same := len(s.Fingerprint) == 0 || bytes.Equal(s.Fingerprint, request.Fingerprint)
	switch {
	case same && s.Expired:
		result.Answer = Answer{StatusCode: s.StatusCode, Header: http.Header{"Location": s.Header["Location"]}}
		return result, ErrExpired
	case same:
		result.Answer = s.Answer
		return result, nil
	case !s.Expired:
		result.Differs = pointers(s.Canonical, request.Canonical)
	}
	return result, ErrReused
}
