package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

var (
	// ErrMissing is returned by ParseKey if there is no header.
	ErrMissing = errors.New("the idempotency key is missing")
	// ErrInvalid is returned for a header or a text that is not a key.
	ErrInvalid = errors.New("the idempotency key is not valid")
	// ErrReused is returned, as a *ReusedError, for a key that was used for another
	// request.
	ErrReused = errors.New("the key was used for another request")
	// ErrExpired is returned for a key whose answer is no longer kept. The work was
	// done, and is never done again.
	ErrExpired = errors.New("the key has expired")
)

// MaxLength is the length of the longest key, in characters.
const MaxLength = 255

// Key identifies a request: the same value in another scope or for another operation
// is another key.
type Key struct {
	Scope     string // the owner of the key, such as a merchant
	Operation string // such as the route
	Value     string
}

// validate returns ErrInvalid unless all parts of the key can be stored.
func (k Key) validate() error {
	for _, part := range []string{k.Scope, k.Operation} {
		if len(part) > MaxLength || !utf8.ValidString(part) || strings.Contains(part, "\x00") {
			return fmt.Errorf("%w: its scope or operation has more than %d bytes, or is no text", ErrInvalid, MaxLength)
		}
	}
	return Validate(k.Value)
}

// Answer is a finished answer, stored byte for byte.
type Answer struct {
	StatusCode  int
	ContentType string
	Location    string      // empty if none
	Header      http.Header `json:",omitempty"` // further headers of a response, nil if none
	Body        []byte
}

// headers is the stored form of the further headers.
func (a Answer) headers() any {
	if len(a.Header) == 0 {
		return nil
	}
	text, _ := json.Marshal(a.Header) // text can always be encoded
	return string(text)
}

// Request tells apart the requests under one key.
type Request struct {
	// Fingerprint is the same for requests that are the same, see the function of that name. An
	// empty one matches every request: an answer that is stored with it blocks the key.
	Fingerprint []byte
	// Canonical is the request as JSON. It is kept as long as the answer, to name the
	// members in which another request differs; nil if it is not kept.
	Canonical []byte
}

// Record is a stored answer with the request that it answers.
type Record struct {
	Answer      // of an expired one only status code and Location are certain
	Fingerprint []byte
	Canonical   []byte // nil if it was not kept
	ExpiresAt   time.Time
	Expired     bool // by the database's clock
}

// Replay returns the stored answer if the request is the one that it answers. Else it
// returns a *ReusedError; or ErrExpired and what is kept for ever of the answer: status
// code and Location.
func (r Record) Replay(request Request) (Answer, error) {
	switch same := len(r.Fingerprint) == 0 || bytes.Equal(r.Fingerprint, request.Fingerprint); {
	case !same && (r.Expired || r.Canonical == nil || request.Canonical == nil):
		return Answer{}, &ReusedError{}
	case !same:
		return Answer{}, &ReusedError{Pointers: Pointers(r.Canonical, request.Canonical)}
	case r.Expired:
		return Answer{StatusCode: r.StatusCode, Location: r.Location}, ErrExpired
	}
	return r.Answer, nil
}

// ReusedError is ErrReused with the members in which the requests differ.
type ReusedError struct {
	// Pointers are JSON Pointers to the members that differ, never their values.
	// There are none if the difference lies outside the canonical requests, or one of
	// these was not kept.
	Pointers []string
}

// Error is the text of ErrReused: pointers may hold names that a client chose.
func (e *ReusedError) Error() string { return ErrReused.Error() }

// Unwrap makes it an ErrReused.
func (e *ReusedError) Unwrap() error { return ErrReused }

// ParseKey reads the values of the Idempotency-Key header. A structured-field
// string "abc" (RFC 8941, as the IETF draft asks for) and the bare abc that most
// clients send are the same key. Only the string may have spaces, none of them at its ends, and
// commas and semicolons: a gateway joins two header lines by a comma, and a semicolon begins
// parameters.
func ParseKey(values []string) (string, error) {
	if len(values) == 0 {
		return "", ErrMissing
	}
	if len(values) > 1 {
		return "", ErrInvalid
	}
	key := strings.Trim(values[0], " \t")
	if quoted := quotedKey.FindStringSubmatch(key); quoted != nil {
		key = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(quoted[1])
	} else if strings.ContainsAny(key, `"\ ,;`) {
		return "", fmt.Errorf(`%w: a space, ",", ";", " or \ needs quotes around the key`, ErrInvalid)
	}
	if err := Validate(key); err != nil {
		return "", err
	}
	return key, nil
}

// quotedKey is a structured-field string without parameters: only \" and \\ are escapes.
var quotedKey = regexp.MustCompile(`^"((?:[^"\\]|\\["\\])*)"$`)

// Validate returns ErrInvalid, wrapped with the reason, unless the key is 1 to MaxLength
// printable ASCII characters, of which neither the first nor the last is a space.
func Validate(key string) error {
	if len(key) < 1 || len(key) > MaxLength {
		return fmt.Errorf("%w: it has %d characters, and 1 to %d are allowed", ErrInvalid, len(key), MaxLength)
	}
	for i := range len(key) {
		if key[i] < ' ' || key[i] > '~' || key[i] == ' ' && (i == 0 || i == len(key)-1) {
			return fmt.Errorf("%w: character %d is not printable ASCII, or a space at an end", ErrInvalid, i+1)
		}
	}
	return nil
}

// Hash is the short form of a key for logs: keys themselves are never logged.
func Hash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:6])
}
