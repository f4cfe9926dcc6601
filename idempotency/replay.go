package idempotency

import (
	"bytes"
	"errors"
)

// What a key that is not free can answer instead of its stored answer.
var (
	// ErrReused is returned, as a *ReusedError, for a key that was used for
	// another request.
	ErrReused = errors.New("the key was used for another request")
	// ErrExpired is returned for a key whose answer is no longer kept. The work
	// was done; it is never done again.
	ErrExpired = errors.New("the key has expired")
)

// ReusedError is ErrReused with the places in which the requests differ.
type ReusedError struct {
	// Pointers are JSON Pointers to the members that differ, never their values.
	// There are none where the difference lies outside the canonical requests, or
	// where one of these was not kept.
	Pointers []string
}

// Error is the text of ErrReused: pointers may hold names that a client chose.
func (e *ReusedError) Error() string { return ErrReused.Error() }

// Unwrap makes it an ErrReused.
func (e *ReusedError) Unwrap() error { return ErrReused }

// Replay is the stored answer, if the request is the one that it was given for.
// Else it is a *ReusedError and no answer; or ErrExpired and of the answer what
// is kept for ever: status code and Location.
func (r Record) Replay(request Request) (Answer, error) {
	switch same := bytes.Equal(r.Fingerprint, request.Fingerprint); {
	case !same && (r.Expired || r.Canonical == nil || request.Canonical == nil):
		return Answer{}, &ReusedError{}
	case !same:
		return Answer{}, &ReusedError{Pointers: Pointers(r.Canonical, request.Canonical)}
	case r.Expired:
		return Answer{StatusCode: r.StatusCode, Location: r.Location}, ErrExpired
	}
	return r.Answer, nil
}
