package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ErrUnstable is returned, wrapped, for what no key can be made of: a part that
// is missing would make one key of many requests.
var ErrUnstable = errors.New("no key can be made of this")

// NaturalKey is a key that the work itself has: whoever means the same work makes
// the same key, without having to remember a random one. It holds what stays the
// same when a message is sent again, so no time of sending, no attempt, no random
// order and no id that a broker draws anew.
type NaturalKey struct {
	Parts     []string // what it is about, in a fixed order: "order-17"
	Operation string   // what is done with it: "charge"
	Version   int      // from 1; another version is other work, or the same work on purpose again
}

// String is the key, such as order-17:charge:v1. Parts are percent-encoded, so
// that no two lists of parts run together, and case matters. A key of more than
// MaxLength characters is its SHA-256 instead, which ParseNaturalKey cannot read.
// Of a valid NaturalKey it is a valid key, quoted or bare.
func (k NaturalKey) String() string {
	var out strings.Builder
	for _, part := range k.Parts {
		escapePart(&out, part)
		out.WriteByte(':')
	}
	escapePart(&out, k.Operation)
	out.WriteString(":v" + strconv.Itoa(k.Version))
	if out.Len() > MaxLength {
		sum := sha256.Sum256([]byte(out.String()))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return out.String()
}

// Validate refuses, with ErrUnstable, a key without parts, with an empty one, or
// without operation or version.
func (k NaturalKey) Validate() error {
	switch {
	case len(k.Parts) == 0:
		return fmt.Errorf("%w: no parts", ErrUnstable)
	case k.Operation == "":
		return fmt.Errorf("%w: no operation", ErrUnstable)
	case k.Version < 1:
		return fmt.Errorf("%w: version %d", ErrUnstable, k.Version)
	}
	for i, part := range k.Parts {
		if part == "" {
			return fmt.Errorf("%w: part %d is empty", ErrUnstable, i+1)
		}
	}
	return nil
}

// ParseNaturalKey reads what String wrote, for those who debug. Nothing else is
// read: of each key there is one spelling. ErrInvalid for all other keys.
func ParseNaturalKey(key string) (NaturalKey, error) {
	fields := strings.Split(key, ":")
	if len(fields) < 3 {
		return NaturalKey{}, fmt.Errorf("%w: not a natural key", ErrInvalid)
	}
	for i, field := range fields[:len(fields)-1] {
		part, ok := unescapePart(field)
		if !ok {
			return NaturalKey{}, fmt.Errorf("%w: not a natural key", ErrInvalid)
		}
		fields[i] = part
	}
	last := len(fields) - 1
	version, err := strconv.Atoi(strings.TrimPrefix(fields[last], "v"))
	k := NaturalKey{Parts: fields[:last-1], Operation: fields[last-1], Version: version}
	if err != nil || k.Validate() != nil || k.String() != key {
		return NaturalKey{}, fmt.Errorf("%w: not a natural key", ErrInvalid)
	}
	return k, nil
}

const upperHex = "0123456789ABCDEF"

// escapePart writes what RFC 3986 calls unreserved as it stands.
func escapePart(out *strings.Builder, part string) {
	for i := range len(part) {
		switch c := part[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._~", c) >= 0:
			out.WriteByte(c)
		default:
			out.Write([]byte{'%', upperHex[c>>4], upperHex[c&15]})
		}
	}
}

func unescapePart(field string) (string, bool) {
	var out strings.Builder
	for i := 0; i < len(field); i++ {
		if field[i] != '%' {
			out.WriteByte(field[i])
			continue
		}
		if i+2 >= len(field) {
			return "", false
		}
		c, err := strconv.ParseUint(field[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		out.WriteByte(byte(c))
		i += 2
	}
	return out.String(), true
}

// Window names the window of time that at lies in, and the one before it, as
// parts of a natural key: for work that is meant once an hour, not once for ever.
// Windows are as long as length, at least a second and in whole seconds, and
// begin at multiples of it in UTC.
//
// The trap is at the boundary. A message of 10:59:59 that is sent again at
// 11:00:01 has another key, and is not recognised. Who must recognise it takes
// the key of the previous window too (Request.Also, Once.Also): then neighbouring
// windows answer for each other, at the price that an intended repetition waits
// for up to two windows. at must come with the message (when it was made, not when it
// was sent or received): else also a slow retry is another key.
func Window(at time.Time, length time.Duration) (this, previous string) {
	length = max(length.Truncate(time.Second), time.Second)
	start := at.UTC().Truncate(length)
	name := func(start time.Time) string {
		return start.Format("20060102T150405Z") + "-" + length.String()
	}
	return name(start), name(start.Add(-length))
}
