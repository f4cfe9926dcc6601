package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
)

// Errors of a key itself.
var (
	// ErrMissing is returned by ParseKey when there is no header, and by an
	// Extractor when a message has no key of its kind.
	ErrMissing = errors.New("the idempotency key is missing")
	// ErrInvalid is returned for a header or a text that is no key.
	ErrInvalid = errors.New("the idempotency key is not a key")
)

// MaxLength is the length of the longest key, in characters.
const MaxLength = 255

// ParseKey reads the values of the Idempotency-Key header. A structured-field
// string "abc" (RFC 8941, as the IETF draft asks for) and the bare abc that most
// clients send are the same key: 1 to 255 visible ASCII characters.
func ParseKey(values []string) (string, error) {
	if len(values) == 0 {
		return "", ErrMissing
	}
	if len(values) > 1 {
		return "", ErrInvalid
	}
	key := strings.Trim(values[0], " \t")
	if strings.HasPrefix(key, `"`) {
		unquoted, ok := unquote(key)
		if !ok {
			return "", ErrInvalid
		}
		key = unquoted
	} else if strings.ContainsAny(key, `"\`) {
		return "", ErrInvalid
	}
	if err := Validate(key); err != nil {
		return "", err
	}
	return key, nil
}

// Validate refuses, with ErrInvalid, what is not 1 to MaxLength visible ASCII
// characters.
func Validate(key string) error {
	if len(key) < 1 || len(key) > MaxLength {
		return ErrInvalid
	}
	for i := range len(key) {
		if key[i] < 0x21 || key[i] > 0x7e {
			return ErrInvalid
		}
	}
	return nil
}

// unquote reads a structured-field string without parameters: only \" and \\
// are escapes.
func unquote(s string) (string, bool) {
	if len(s) < 2 || !strings.HasSuffix(s, `"`) {
		return "", false
	}
	var out strings.Builder
	inner := s[1 : len(s)-1]
	for i := 0; i < len(inner); i++ {
		switch inner[i] {
		case '"':
			return "", false
		case '\\':
			i++
			if i == len(inner) || (inner[i] != '"' && inner[i] != '\\') {
				return "", false
			}
		}
		out.WriteByte(inner[i])
	}
	return out.String(), true
}

// Fingerprint tells requests apart that came under one key: SHA-256 over the
// parts, each with its length before it, so that no two lists of parts run
// together. The first part should name the version of the encoding of the others.
func Fingerprint(parts ...[]byte) []byte {
	h := sha256.New()
	var length [8]byte
	for _, part := range parts {
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write(part)
	}
	return h.Sum(nil)
}

// Hash is the short form of a key for logs: keys themselves are never logged.
func Hash(key string) string {
	sum := sha256.Sum256([]byte(key))
	const hexadecimal = "0123456789abcdef"
	var out [12]byte
	for i := range out[:len(out)/2] {
		out[2*i], out[2*i+1] = hexadecimal[sum[i]>>4], hexadecimal[sum[i]&15]
	}
	return string(out[:])
}
