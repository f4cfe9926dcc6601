package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"reflect"
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
	var sameBody []byte
	var err error
	switch {
	case media == "application/json" || strings.HasSuffix(media, "+json"):
		sameBody, err = canonicalOf(body)
	case strings.HasPrefix(media, "multipart/"):
		sameBody, err = fingerprintParts(body, parameters["boundary"])
	default:
		sameBody = body
	}
	if err != nil {
		sameBody = body
	}
	query := r.URL.RawQuery
	if values, err := url.ParseQuery(query); err == nil {
		query = values.Encode()
	}
	return Fingerprint([]byte("http.v2"), []byte(r.Method), []byte(r.URL.EscapedPath()), []byte(query), []byte(media), sameBody)
}

// fingerprintParts leaves out what is new in each sending of a multipart body: the boundary.
func fingerprintParts(body []byte, boundary string) ([]byte, error) {
	var parts [][]byte
	reader := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		part, err := reader.NextRawPart()
		if errors.Is(err, io.EOF) && len(parts) > 0 {
			return Fingerprint(parts...), nil
		}
		if err != nil {
			return nil, fmt.Errorf("read a part: %w", err)
		}
		text, err := io.ReadAll(part)
		if err != nil {
			return nil, fmt.Errorf("read a part: %w", err)
		}
		header, err := json.Marshal(part.Header, json.Deterministic(true), jsontext.AllowInvalidUTF8(false))
		if err != nil {
			return nil, fmt.Errorf("read the header of a part: %w", err)
		}
		parts = append(parts, header, text)
	}
}

// ErrNotJSON is returned, wrapped, for a text that is not exactly one JSON value
// with one meaning: invalid UTF-8, half of a surrogate pair and a repeated member
// are refused, since readers disagree about them.
var ErrNotJSON = errors.New("not one JSON value with one meaning")

// canonicalOf returns the one form of all JSON texts with the same value, that of RFC 8785, but
// whole numbers keep all digits. The order of members, white space and the spelling of a
// character or a number do not matter.
func canonicalOf(text []byte) ([]byte, error) {
	value, err := parse(text)
	if err != nil {
		return nil, err
	}
	// Canonicalize takes the square of the depth to bring members within members into order:
	// here they have their order already.
	canonical, err := json.Marshal(value, json.Deterministic(true))
	if err == nil {
		err = (*jsontext.Value)(&canonical).Canonicalize(jsontext.CanonicalizeRawInts(false))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotJSON, err)
	}
	return canonical, nil
}

// number is the text of a number, which encoding as a float64 would round.
type number string

// MarshalJSON writes the number as it is.
func (n number) MarshalJSON() ([]byte, error) { return []byte(n), nil }

var exactNumbers = json.WithUnmarshalers(json.UnmarshalFromFunc(func(in *jsontext.Decoder, value *any) error {
	if in.PeekKind() != '0' {
		return errors.ErrUnsupported
	}
	text, err := in.ReadValue()
	*value = number(text)
	return err
}))

// parse reads one value.
func parse(text []byte) (value any, err error) {
	if err := json.Unmarshal(text, &value, exactNumbers); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotJSON, err)
	}
	return value, nil
}

const (
	maxPointers      = 100
	maxPointerLength = 1000 // bytes
)

// pointers returns the JSON Pointers (RFC 6901) to the deepest members in which two
// JSON texts differ, sorted. A member that only one of them has is pointed at itself, an element
// of an array by its index. A text that is not JSON is compared as a whole, which is the pointer "".
//
// There are no more than 100, and none is longer than 1000 bytes: what lies deeper has the
// pointer of the last member that fits.
func pointers(a, b []byte) []string {
	first, errFirst := canonicalValue(a)
	second, errSecond := canonicalValue(b)
	switch {
	case errFirst == nil && errSecond == nil:
		all := differences("", first, second)
		slices.Sort(all)
		all = slices.Compact(all)
		return all[:min(len(all), maxPointers)]
	case bytes.Equal(a, b):
		return nil
	}
	return []string{""}
}

func canonicalValue(text []byte) (any, error) {
	canonical, err := canonicalOf(text)
	if err != nil {
		return nil, err
	}
	return parse(canonical)
}

// differences are the pointers to what differs at and below a pointer, in any order.
func differences(at jsontext.Pointer, a, b any) (found []string) {
	membersA, isArray := membersOf(a)
	membersB, isArrayToo := membersOf(b)
	if membersA == nil || membersB == nil || isArray != isArrayToo {
		if membersA != nil || membersB != nil || a != b {
			found = append(found, string(at))
		}
		return found
	}
	all := maps.Clone(membersA)
	maps.Copy(all, membersB)
	for name := range all {
		valueA, inA := membersA[name]
		valueB, inB := membersB[name]
		switch below := at.AppendToken(name); {
		case len(below) > maxPointerLength:
			if inA != inB || !reflect.DeepEqual(valueA, valueB) {
				found = append(found, string(at))
			}
		case inA && inB:
			found = append(found, differences(below, valueA, valueB)...)
		default:
			found = append(found, string(below))
		}
	}
	return found
}

// membersOf returns the members of an object, or the elements of an array by index; nil
// for any other value.
func membersOf(value any) (members map[string]any, isArray bool) {
	switch value := value.(type) {
	case map[string]any:
		return value, false
	case []any:
		members = make(map[string]any, len(value))
		for i, element := range value {
			members[strconv.Itoa(i)] = element
		}
		return members, true
	}
	return nil, false
}
