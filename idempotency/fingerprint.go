package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	v1 "github.com/go-json-experiment/json/v1"
)

// Fingerprint tells apart the requests under one key: SHA-256 over the parts, each with
// its length before it, so that no two lists of parts have the same bytes. The first part
// should name the version of the encoding of the others.
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

// ErrNotJSON is returned, wrapped, for a text that is not exactly one JSON value
// with one meaning: invalid UTF-8, half of a surrogate pair and a repeated member
// are refused, since readers disagree about them.
var ErrNotJSON = errors.New("not one JSON value with one meaning")

// Canonical returns the one form of all JSON texts with the same value. The order of
// members, white space and the spelling of a character or a number do not matter. Strings
// and the order of members are those of RFC 8785; numbers are decimals of any size, never
// rounded. An exponent of more than 10 characters is ErrNotJSON. The form never changes:
// hashes of it are stored.
func Canonical(text []byte) ([]byte, error) {
	value, err := parse(text)
	if err != nil {
		return nil, err
	}
	canonical, err := json.Marshal(value, json.Deterministic(true))
	if err == nil {
		// The members have this order already. To bring objects within objects into it
		// would take the square of their depth.
		err = (*jsontext.Value)(&canonical).Format(jsontext.ReorderRawObjects(true))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotJSON, err)
	}
	return canonical, nil
}

// number is a number as its decimal.
type number string

// MarshalJSON writes the decimal as it is.
func (n number) MarshalJSON() ([]byte, error) { return []byte(n), nil }

var exactNumbers = json.WithUnmarshalers(json.UnmarshalFromFunc(func(in *jsontext.Decoder, value *any) error {
	if in.PeekKind() != '0' {
		return errors.ErrUnsupported
	}
	text, err := in.ReadValue()
	if err == nil {
		*value, err = decimal(string(text))
	}
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
	// plainDigits is the length up to which an integer is written without exponent.
	plainDigits = 40
	// exponentLength is the length of the longest exponent, its sign included.
	exponentLength = 10
)

// decimal writes a number as the shortest digits and an exponent, so that 1, 1.0
// and 10e-1 are one. Nothing is rounded, and a large exponent costs nothing.
func decimal(text string) (number, error) {
	text, negative := strings.CutPrefix(text, "-")
	digits, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	whole, fraction, _ := strings.Cut(digits, ".")
	if len(exponent) > exponentLength {
		return "", errExponent
	}
	power, _ := strconv.Atoi(exponent) // 0 if there is none
	digits = strings.TrimLeft(whole+fraction, "0")
	out := strings.TrimRight(digits, "0")
	power += len(digits) - len(out) - len(fraction)
	switch {
	case out == "":
		return "0", nil
	case power >= 0 && power <= plainDigits-len(out):
		out += strings.Repeat("0", power)
	case len(strconv.Itoa(power)) > exponentLength:
		return "", errExponent
	case power != 0:
		out += "e" + strconv.Itoa(power)
	}
	if negative {
		out = "-" + out
	}
	return number(out), nil
}

var errExponent = fmt.Errorf("an exponent of more than %d characters", exponentLength)

// canonicalOf returns the canonical JSON of a Go value, as encoding/json has it. It
// refuses what would make different values equal: encoding/json replaces bytes that are
// not UTF-8, and leaves out fields that are not exported.
func canonicalOf(value any) ([]byte, error) {
	text, err := json.Marshal(value, v1.DefaultOptionsV1(), jsontext.AllowInvalidUTF8(false))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotJSON, err)
	}
	canonical, err := Canonical(text)
	if err != nil {
		return nil, err
	}
	if string(canonical) == "{}" && isHidden(reflect.TypeOf(value)) {
		return nil, fmt.Errorf("%w: %T has no exported field", ErrUnstable, value)
	}
	return canonical, nil
}

// isHidden reports whether a type is a struct that has fields and exports none.
func isHidden(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.NumField() == 0 {
		return false
	}
	return !slices.ContainsFunc(reflect.VisibleFields(t), func(field reflect.StructField) bool {
		return field.IsExported() && !field.Anonymous && field.Tag.Get("json") != "-"
	})
}

const (
	maxPointers      = 100
	maxPointerLength = 1000 // bytes
)

// Pointers returns the JSON Pointers (RFC 6901) to the deepest members in which two
// JSON texts differ, sorted; none exactly if Canonical makes them one. A member
// that only one of them has is pointed at itself, an element of an array by its
// index. A text that is not JSON is compared as a whole, which is the pointer "".
//
// There are no more than 100, and none is longer than 1000 bytes: the last member that
// fits stands for what lies deeper.
func Pointers(a, b []byte) []string {
	first, errFirst := parse(a)
	second, errSecond := parse(b)
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

// differences are the pointers to what differs at and below a pointer, in any order.
func differences(at string, a, b any) (found []string) {
	membersA, isArray := membersOf(a)
	membersB, isArrayToo := membersOf(b)
	if membersA == nil || membersB == nil || isArray != isArrayToo {
		if a != b { // of one type only if both are scalars
			found = append(found, at)
		}
		return found
	}
	all := maps.Clone(membersA)
	maps.Copy(all, membersB)
	for name := range all {
		valueA, inA := membersA[name]
		valueB, inB := membersB[name]
		switch below := string(jsontext.Pointer(at).AppendToken(name)); {
		case len(below) > maxPointerLength:
			if inA != inB || !reflect.DeepEqual(valueA, valueB) {
				found = append(found, at)
			}
		case inA && inB:
			found = append(found, differences(below, valueA, valueB)...)
		default:
			found = append(found, below)
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
