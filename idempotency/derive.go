package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrUnstable is returned, wrapped, for what cannot be made into a key: with a missing
// part, many requests would have one key.
var ErrUnstable = errors.New("no key can be made of this")

// NaturalKey is a key that the work itself has, so a sender does not have to store a
// random one. Its parts must be the same when a message is sent again: no time of
// sending, no attempt, no random order and no id that a broker makes anew.
type NaturalKey struct {
	Parts     []string // what it is about, in a fixed order: "order-17"
	Operation string   // what is done with it: "charge"
	Version   int      // from 1; another version is other work, or the same work on purpose again
}

// String returns the key, such as order-17:charge:v1. Parts are percent-encoded, so no
// two lists of parts have the same key, and case matters. A key of more than MaxLength
// characters is its SHA-256 instead, which ParseNaturalKey cannot read. Of a valid
// NaturalKey it is a valid key, quoted or bare.
func (k NaturalKey) String() string {
	var out strings.Builder
	for _, part := range append(slices.Clone(k.Parts), k.Operation) {
		out.WriteString(strings.ReplaceAll(url.QueryEscape(part), "+", "%20") + ":")
	}
	out.WriteString("v" + strconv.Itoa(k.Version))
	if out.Len() > MaxLength {
		sum := sha256.Sum256([]byte(out.String()))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return out.String()
}

// Validate returns ErrUnstable for a key without parts, with an empty one, or without
// operation or version.
func (k NaturalKey) Validate() error {
	switch {
	case len(k.Parts) == 0:
		return fmt.Errorf("%w: no parts", ErrUnstable)
	case slices.Contains(k.Parts, ""):
		return fmt.Errorf("%w: part %d is empty", ErrUnstable, slices.Index(k.Parts, "")+1)
	case k.Operation == "":
		return fmt.Errorf("%w: no operation", ErrUnstable)
	case k.Version < 1:
		return fmt.Errorf("%w: version %d", ErrUnstable, k.Version)
	}
	return nil
}

// ParseNaturalKey reads what String wrote, for debugging. Of each key there is one
// spelling: ErrInvalid for all others.
func ParseNaturalKey(key string) (NaturalKey, error) {
	errNotNatural := fmt.Errorf("%w: not a natural key", ErrInvalid)
	fields := strings.Split(key, ":")
	last := len(fields) - 1
	if last < 2 {
		return NaturalKey{}, errNotNatural
	}
	for i, field := range fields[:last] {
		part, err := url.PathUnescape(field)
		if err != nil {
			return NaturalKey{}, errNotNatural
		}
		fields[i] = part
	}
	version, err := strconv.Atoi(strings.TrimPrefix(fields[last], "v"))
	k := NaturalKey{Parts: fields[:last-1], Operation: fields[last-1], Version: version}
	if err != nil || k.Validate() != nil || k.String() != key {
		return NaturalKey{}, errNotNatural
	}
	return k, nil
}

// Window returns the names of the time window that contains at, and of the one before
// it, as parts of a natural key: for work that is meant once an hour, not once for ever.
// Windows have the given length, at least a second and in whole seconds, and begin at
// multiples of it in UTC.
//
// A message of 10:59:59 that is sent again at 11:00:01 has another key and runs
// twice. To recognise it, claim the key of the previous window too (Options.Also): then
// neighbouring windows answer for each other, and an intended repetition waits for up to
// two windows. at must come with the message (when it was made, not when it was sent or
// received): else a slow retry has another key too.
func Window(at time.Time, length time.Duration) (this, previous string) {
	length = max(length.Truncate(time.Second), time.Second)
	start := at.UTC().Truncate(length)
	name := func(start time.Time) string {
		return start.Format("20060102T150405Z") + "-" + length.String()
	}
	return name(start), name(start.Add(-length))
}

// Content returns a key of what a message says, SHA-256 over its canonical JSON and its
// source, and the canonical JSON. ErrNotJSON for a text that is not JSON.
//
// If the key becomes the id of a message, make the canonical JSON its payload: the inbox
// compares payloads byte for byte and would quarantine the same message in another
// spelling.
//
// It is the last resort, for senders that give no key. Two messages that say the
// same become one: two intended orders of the same article are one order. And
// a member that changes with each sending, such as a time, makes them two.
func Content(source string, payload []byte) (key string, canonical []byte, err error) {
	canonical, err = Canonical(payload)
	if err != nil {
		return "", nil, err
	}
	sum := Fingerprint([]byte("content.v1"), []byte(source), canonical)
	return "content.v1:" + hex.EncodeToString(sum), canonical, nil
}
