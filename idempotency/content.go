package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Fingerprint tells apart the requests under one key: SHA-256 over the parts, each after its length, so that no two
// lists of parts have the same bytes. The first part should name the version of the encoding of the others.
func Fingerprint(parts ...[]byte) []byte {
	h := sha256.New()
	for _, part := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return h.Sum(nil)
}

// Content returns a key of what a JSON text says, SHA-256 over its canonical form and its source, and the text as a
// request. The source is the sender of a message, or the operation.
//
// The order of members, white space and the spelling of a character do not matter. A number is its text: 1 and 1.0
// are two. Readers disagree about invalid UTF-8, half of a surrogate pair and a repeated member: each of them is an
// error, as is what is deeper than 100 values within values.
//
// Such a key is the last resort, for senders that give none: two intended orders of the same article are one, and
// a member that changes with each sending, such as a time, makes them two. If the key becomes the id of a
// message, make the canonical JSON its payload: the inbox compares payloads byte for byte.
func Content(source string, text []byte) (key string, request Request, err error) {
	if request.Canonical, err = canonicalOf(text); err != nil {
		return "", Request{}, fmt.Errorf("read the JSON of %s, which needs one meaning: %w", source, err)
	}
	request.Fingerprint = Fingerprint([]byte("content.v2"), []byte(source), request.Canonical)
	return "content.v2:" + hex.EncodeToString(request.Fingerprint), request, nil
}

const (
	maxDepth = 100 // of values within values: canonical JSON costs the depth times the size

	// The bounds of pointers, in bytes but for their number: each pointer repeats the names above its member.
	maxCompared      = 128 << 10
	maxPointers      = 100
	maxPointerLength = 1000
)

// canonicalOf returns the form of RFC 8785, but a number keeps its text, which a float64 would round.
func canonicalOf(text []byte) (canonical jsontext.Value, err error) {
	in := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true)) // Canonicalize refuses them
	for ; err == nil; _, err = in.ReadToken() {
		if in.StackDepth() > maxDepth {
			return nil, fmt.Errorf("deeper than %d values within values", maxDepth)
		}
	}
	canonical = bytes.Clone(text)
	err = canonical.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false))
	return canonical, err
}

// pointers returns the JSON Pointers (RFC 6901) to the deepest members in which two JSON texts differ, sorted. A
// member that only one of them has is pointed at itself, an element of an array by its index.
func pointers(a, b []byte) (found []string) {
	if min(len(a), len(b)) == 0 || max(len(a), len(b)) > maxCompared {
		return nil
	}
	inA, inB := valuesOf(a), valuesOf(b)
	all := maps.Clone(inA)
	maps.Copy(all, inB)
	for _, at := range slices.Sorted(maps.Keys(all)) {
		holds := func(above string) bool { return jsontext.Pointer(above).Contains(at) }
		if inA[at] != inB[at] && len(found) < maxPointers && !slices.ContainsFunc(found, holds) {
			found = append(found, string(at))
		}
	}
	return found
}

// valuesOf returns the values of a JSON text by their pointers: of an object and an array the kind.
func valuesOf(text []byte) map[jsontext.Pointer]string {
	values := map[jsontext.Pointer]string{}
	in := jsontext.NewDecoder(bytes.NewReader(text))
	for {
		token, err := in.ReadToken()
		if err != nil {
			return values
		}
		kind, said := token.Kind().String(), token.String() // before the decoder goes on
		switch at := in.StackPointer(); {                   // of a name too, whose value comes next
		case len(at) <= maxPointerLength:
			values[at] = kind + said
		case in.SkipValue() != nil: // below a name that is too long
			return values
		}
	}
}
