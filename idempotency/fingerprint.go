package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Fingerprint tells apart the requests under one key: SHA-256 over the parts, each with
// its length before it, so that no two lists of parts have the same bytes. The first part
// should name the version of the encoding of the others.
func Fingerprint(parts ...[]byte) []byte {
	h := sha256.New()
	for _, part := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return h.Sum(nil)
}

// fingerprintOf is the default of HTTPOptions.Fingerprint.
func fingerprintOf(r *http.Request, body []byte) []byte {
	media, parameters, _ := mime.ParseMediaType(r.Header.Get(headerContentType)) // empty if it is none
	switch {
	case media == "application/json" || strings.HasSuffix(media, "+json"):
		if canonical, err := canonicalOf(body); err == nil {
			body = canonical
		}
	case strings.HasPrefix(media, "multipart/"): // what lies between the boundaries, which are new in each sending
		body = Fingerprint(bytes.Split(append([]byte("\r\n"), body...), []byte("\r\n--"+parameters["boundary"]))...)
	}
	query := r.URL.RawQuery
	if values, err := url.ParseQuery(query); err == nil {
		query = values.Encode()
	}
	return Fingerprint([]byte("http.v2"), []byte(r.Method), []byte(r.URL.EscapedPath()), []byte(query), []byte(media), body)
}

// ErrNotJSON is returned, wrapped, for a text that is not exactly one JSON value
// with one meaning: invalid UTF-8, half of a surrogate pair and a repeated member
// are refused, since readers disagree about them.
var ErrNotJSON = errors.New("not one JSON value with one meaning")

// maxDepth bounds how deep values lie within values. To bring members into order costs the
// depth times the size, and the sender chooses both.
const maxDepth = 100

// canonicalOf returns the one form of all JSON texts that differ in the order of members, in white
// space or in the spelling of a character: that of RFC 8785, but a number keeps its text, which a
// float64 would round.
func canonicalOf(text []byte) ([]byte, error) {
	for in := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true)); ; { // which Canonicalize refuses
		if _, err := in.ReadToken(); err != nil {
			break // at the end, or where Canonicalize ends too
		}
		if in.StackDepth() > maxDepth {
			return nil, fmt.Errorf("%w: it is deeper than %d values within values", ErrNotJSON, maxDepth)
		}
	}
	canonical := jsontext.Value(bytes.Clone(text))
	if err := canonical.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotJSON, err)
	}
	return canonical, nil
}

const (
	maxPointers      = 100
	maxPointerLength = 1000 // bytes
)

// pointers returns the JSON Pointers (RFC 6901) to the deepest members in which two
// JSON texts differ, sorted. A member that only one of them has is pointed at itself, an element
// of an array by its index. There are none if one of the texts is not JSON.
//
// There are no more than 100, and none is longer than 1000 bytes: what lies deeper has the
// pointer of the last member that fits.
func pointers(a, b []byte) []string {
	first, errFirst := canonicalOf(a)
	second, errSecond := canonicalOf(b)
	if errFirst != nil || errSecond != nil {
		return nil
	}
	all := differences("", first, second)
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), maxPointers)]
}

// differences are the pointers to what differs at and below a pointer, in any order.
func differences(at jsontext.Pointer, a, b jsontext.Value) (found []string) {
	if bytes.Equal(a, b) {
		return nil
	}
	membersA, membersB := membersOf(a), membersOf(b)
	if membersA == nil || a.Kind() != b.Kind() {
		return []string{string(at)}
	}
	all := maps.Clone(membersA)
	maps.Copy(all, membersB)
	for name := range all {
		below := at.AppendToken(name)
		switch {
		case len(below) <= maxPointerLength:
			found = append(found, differences(below, membersA[name], membersB[name])...)
		case !bytes.Equal(membersA[name], membersB[name]):
			found = append(found, string(at))
		}
	}
	return found
}

// membersOf returns the members of an object, or the elements of an array by index; nil
// for any other value.
func membersOf(value jsontext.Value) (members map[string]jsontext.Value) {
	if value.Kind() == '{' {
		_ = json.Unmarshal(value, &members) // it is canonical
	}
	if value.Kind() == '[' {
		var elements []jsontext.Value
		_ = json.Unmarshal(value, &elements)
		members = make(map[string]jsontext.Value, len(elements))
		for i, element := range elements {
			members[strconv.Itoa(i)] = element
		}
	}
	return members
}
