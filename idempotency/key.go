package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const maxLength = 255 // of a key, in characters

// Key identifies a request: the same value in another scope or for another operation is another key.
type Key struct {
	Scope     string // the owner of the key, such as a merchant
	Operation string // such as the route
	Value     string
}

// validate returns ErrInvalid unless all parts of the key can be stored.
func (k Key) validate() error {
	owner := k.Scope + " " + k.Operation
	if len(owner) > 2*maxLength+1 || !utf8.ValidString(owner) || strings.Contains(owner, "\x00") {
		return fmt.Errorf("%w: its scope and operation have more than %d bytes, or are no text", ErrInvalid, 2*maxLength)
	}
	return Validate(k.Value)
}

// ParseKey reads the values of the Idempotency-Key header. A structured-field string "abc" (RFC 8941, as the IETF
// draft asks for) and the bare abc that most clients send are the same key. Only the string may have spaces
// inside, commas and semicolons: a gateway joins two header lines, which are refused, by a comma.
func ParseKey(values []string) (string, error) {
	if len(values) == 0 {
		return "", ErrMissing
	}
	key := strings.Trim(strings.Join(values, "\n"), " \t")
	if quoted := quotedKey.FindStringSubmatch(key); quoted != nil {
		key = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(quoted[1])
	} else if strings.ContainsAny(key, `"\ ,;`) {
		return "", fmt.Errorf(`%w: a space, ",", ";", " or \ needs quotes around the key`, ErrInvalid)
	}
	return key, Validate(key)
}

// quotedKey is a structured-field string without parameters: only \" and \\ are escapes.
var quotedKey = regexp.MustCompile(`^"((?:[^"\\]|\\["\\])*)"$`)

// Validate returns ErrInvalid unless the key is 1 to 255 printable ASCII characters, without a space at an end.
func Validate(key string) error {
	notPrintable := func(r rune) bool { return r < ' ' || r > '~' }
	if len(key) < 1 || len(key) > maxLength || strings.ContainsFunc(key, notPrintable) || strings.Trim(key, " ") != key {
		return fmt.Errorf("%w: 1 to %d printable ASCII characters are allowed, without a space at an end", ErrInvalid, maxLength)
	}
	return nil
}

// Hash is the short form of a key for logs: keys themselves are never logged.
func Hash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:6])
}

// NaturalKey returns a key that the work itself has, so a sender does not have to store a random one:
// order-17:charge:v1 is what is done (the operation) with what it is about (the parts, in a fixed order).
// Another version, from 1, is other work, or the same work on purpose again. The parts must be the same when a
// message is sent again: no time of sending, no attempt, no id that a broker makes anew. For work that is meant once
// an hour, a part names the hour in which the message was made. Parts are percent-encoded, so no two lists of parts
// have the same key, and case matters.
//
// ErrInvalid without parts or operation, or with an empty one: many requests would have that key. So is a key of more
// than 255 characters.
func NaturalKey(operation string, version int, parts ...string) (string, error) {
	fields := append(slices.Clone(parts), operation)
	if len(parts) == 0 || slices.Contains(fields, "") || version < 1 {
		return "", fmt.Errorf("%w: a natural key has parts, an operation and a version, none of them empty", ErrInvalid)
	}
	for i, field := range fields {
		fields[i] = strings.ReplaceAll(url.QueryEscape(field), "+", "%20")
	}
	key := strings.Join(fields, ":") + ":v" + strconv.Itoa(version)
	return key, Validate(key)
}
