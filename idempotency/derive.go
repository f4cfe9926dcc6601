package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// NaturalKey is a key that the work itself has, so a sender does not have to store a
// random one. Its parts must be the same when a message is sent again: no time of
// sending, no attempt, no random order and no id that a broker makes anew.
type NaturalKey struct {
	Parts     []string // what it is about, in a fixed order: "order-17"; none is empty
	Operation string   // what is done with it: "charge"
	Version   int      // from 1; another version is other work, or the same work on purpose again
}

// String returns the key, such as order-17:charge:v1. Parts are percent-encoded, so no
// two lists of parts have the same key, and case matters. A key of more than 255 characters is
// its SHA-256 instead, which ParseNaturalKey cannot read.
func (k NaturalKey) String() string {
	var out strings.Builder
	for _, part := range append(slices.Clone(k.Parts), k.Operation) {
		out.WriteString(strings.ReplaceAll(url.QueryEscape(part), "+", "%20") + ":")
	}
	out.WriteString("v" + strconv.Itoa(k.Version))
	if out.Len() > maxLength {
		sum := sha256.Sum256([]byte(out.String()))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return out.String()
}

// ParseNaturalKey reads what String wrote, for debugging. Of each key there is one
// spelling: ErrInvalid for all others, and for a key without parts, with an empty one, or
// without operation or version: many requests would have it.
func ParseNaturalKey(key string) (NaturalKey, error) {
	fields := strings.Split(key, ":")
	last := len(fields) - 1
	for i, field := range fields {
		fields[i], _ = url.PathUnescape(field) // empty for what String does not write
	}
	version, _ := strconv.Atoi(strings.TrimPrefix(fields[last], "v"))
	if last >= 2 && version >= 1 && !slices.Contains(fields, "") {
		if k := (NaturalKey{Parts: fields[:last-1], Operation: fields[last-1], Version: version}); k.String() == key {
			return k, nil
		}
	}
	return NaturalKey{}, fmt.Errorf("%w: not a natural key", ErrInvalid)
}

// Window returns the name of the time window that contains at, as a part of a natural key: for
// work that is meant once an hour, not once for ever. Windows have the given length, at least a
// second and in whole seconds, and begin at multiples of it in UTC.
//
// at must come with the message (when it was made, not when it was sent or received): else a
// message that is sent again in the next window has another key, and runs twice.
func Window(at time.Time, length time.Duration) string {
	length = max(length.Truncate(time.Second), time.Second)
	return at.UTC().Truncate(length).Format("20060102T150405Z") + "-" + length.String()
}

// Content returns a key of what a message says, SHA-256 over its canonical JSON and its
// source, and the canonical JSON. The order of members, white space and the spelling of a
// character do not matter. A number is its text: 1 and 1.0 are two, and so are 0.1 and
// 0.10000000000000000001. ErrNotJSON for a text that is not JSON, or is deeper than 100 values
// within values.
//
// If the key becomes the id of a message, make the canonical JSON its payload: the inbox
// compares payloads byte for byte.
//
// It is the last resort, for senders that give no key. Two messages that say the
// same become one: two intended orders of the same article are one order. And
// a member that changes with each sending, such as a time, makes them two.
func Content(source string, payload []byte) (key string, canonical []byte, err error) {
	canonical, err = canonicalOf(payload)
	if err != nil {
		return "", nil, err
	}
	sum := Fingerprint([]byte("content.v2"), []byte(source), canonical)
	return "content.v2:" + hex.EncodeToString(sum), canonical, nil
}

// ByContent returns the default key of work on an input, a hash of the operation and the
// input, and the request. Set Key.Value where the input has a better one, such as a
// NaturalKey: another input under that key is ErrReused.
//
// The input is read as encoding/json writes it. What that leaves out is not compared, such
// as fields that are not exported. Text that is not UTF-8 is ErrNotJSON, since many inputs
// would be written alike.
func ByContent(scope, operation string, input any) (Key, Request, error) {
	text, err := json.Marshal(input, jsonv1.DefaultOptionsV1(), jsontext.AllowInvalidUTF8(false))
	if err != nil {
		return Key{}, Request{}, fmt.Errorf("encode an input of %s: %w: %w", operation, ErrNotJSON, err)
	}
	value, canonical, err := Content(operation, text)
	return Key{Scope: scope, Operation: operation, Value: value},
		Request{Fingerprint: Fingerprint([]byte("once.v2"), []byte(operation), canonical), Canonical: canonical}, err
}
