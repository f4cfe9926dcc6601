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
	"time"
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
	for _, part := range []string{k.Scope, k.Operation} {
		if len(part) > maxLength || !utf8.ValidString(part) || strings.Contains(part, "\x00") {
			return fmt.Errorf("%w: its scope or operation has more than %d bytes, or is no text", ErrInvalid, maxLength)
		}
	}
	return Validate(k.Value)
}

// ParseKey reads the values of the Idempotency-Key header. A structured-field string "abc" (RFC 8941, as the IETF
// draft asks for) and the bare abc that most clients send are the same key. Only the string may have spaces
// inside, commas and semicolons: a gateway joins two header lines by a comma, and a semicolon begins parameters.
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

// Validate returns ErrInvalid, wrapped with the reason, unless the key is 1 to 255 printable
// ASCII characters, of which neither the first nor the last is a space.
func Validate(key string) error {
	if len(key) < 1 || len(key) > maxLength {
		return fmt.Errorf("%w: it has %d characters, and 1 to %d are allowed", ErrInvalid, len(key), maxLength)
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

// NaturalKey returns a key that the work itself has, so a sender does not have to store a random one:
// order-17:charge:v1 is what is done (the operation) with what it is about (the parts, in a fixed order).
// Another version, from 1, is other work, or the same work on purpose again. The parts must be the same when a
// message is sent again: no time of sending, no attempt, no id that a broker makes anew. ErrInvalid without
// parts or operation, or with an empty one: many requests would have that key.
//
// Parts are percent-encoded, so no two lists of parts have the same key, and case matters. A key of more than
// 255 characters is its SHA-256 instead.
func NaturalKey(operation string, version int, parts ...string) (string, error) {
	fields := append(slices.Clone(parts), operation)
	if len(parts) == 0 || slices.Contains(fields, "") || version < 1 {
		return "", fmt.Errorf("%w: a natural key has parts, an operation and a version, none of them empty", ErrInvalid)
	}
	for i, field := range fields {
		fields[i] = strings.ReplaceAll(url.QueryEscape(field), "+", "%20")
	}
	key := strings.Join(fields, ":") + ":v" + strconv.Itoa(version)
	if len(key) > maxLength {
		sum := sha256.Sum256([]byte(key))
		return "sha256:" + hex.EncodeToString(sum[:]), nil
	}
	return key, nil
}

// Window returns the name of the time window that contains at, as a part of a natural key: for work that is meant
// once an hour, not once for ever. Windows have the given length, in whole seconds, and begin at multiples of it
// in UTC. at must be when the message was made, not when it was sent: else a message that is sent again in the
// next window has another key, and runs twice.
func Window(at time.Time, length time.Duration) string {
	length = max(length.Truncate(time.Second), time.Second)
	return at.UTC().Truncate(length).Format("20060102T150405Z") + "-" + length.String()
}
