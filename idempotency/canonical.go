package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ErrNotJSON is returned, wrapped, for a text that is not exactly one JSON value
// with one meaning: invalid UTF-8, half of a surrogate pair and a repeated member
// are refused, since readers disagree about them.
var ErrNotJSON = errors.New("not one JSON value with one meaning")

// Canonical is the one form of all JSON texts that say the same. Order of
// members, white space and the way a character or a number is written do not
// matter; numbers are compared as decimals, exactly, whatever their size. An
// exponent of more than 100 digits is refused as ErrNotJSON: to reckon with it
// takes longer than to read it. The form never changes: hashes of it are stored.
func Canonical(text []byte) ([]byte, error) {
	value, err := decode(text)
	if err != nil {
		return nil, err
	}
	return appendCanonical(nil, value), nil
}

// decode reads one value. Numbers become canonical, as json.Number.
func decode(text []byte) (any, error) {
	switch {
	case !json.Valid(text):
		return nil, ErrNotJSON
	case !utf8.Valid(text):
		return nil, fmt.Errorf("%w: invalid UTF-8", ErrNotJSON)
	case halfPair(text):
		return nil, fmt.Errorf("%w: half of a surrogate pair", ErrNotJSON)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return decodeNext(d)
}

// decodeNext recurses as deep as the text nests, which json.Valid has bounded.
func decodeNext(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotJSON, err)
	}
	switch token := token.(type) {
	case json.Number:
		return decimal(token)
	case json.Delim:
		if token == '[' {
			return decodeArray(d)
		}
		return decodeObject(d)
	default:
		return token, nil
	}
}

func decodeArray(d *json.Decoder) (any, error) {
	array := []any{}
	for d.More() {
		value, err := decodeNext(d)
		if err != nil {
			return nil, err
		}
		array = append(array, value)
	}
	_, err := d.Token()
	return array, err
}

func decodeObject(d *json.Decoder) (any, error) {
	object := map[string]any{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotJSON, err)
		}
		name, _ := token.(string)
		if _, repeated := object[name]; repeated {
			return nil, fmt.Errorf("%w: a repeated member", ErrNotJSON)
		}
		if object[name], err = decodeNext(d); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return object, err
}

// halfPair tells whether valid JSON escapes half of a surrogate pair. Go reads
// any such half as U+FFFD, which would make different texts equal.
func halfPair(text []byte) bool {
	surrogate := func(at int, first byte) bool { // \uD8.. to \uDB.., or \uDC.. to \uDF..
		if at+6 > len(text) || text[at] != '\\' || text[at+1] != 'u' || text[at+2]|0x20 != 'd' {
			return false
		}
		nibble, err := strconv.ParseUint(string(text[at+3]), 16, 8)
		return err == nil && byte(nibble)&^3 == first
	}
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] != '\\':
		case surrogate(i, 0xc):
			return true
		case surrogate(i, 0x8):
			if !surrogate(i+6, 0xc) {
				return true
			}
			i += 11
		default:
			i++ // the character that is escaped
		}
	}
	return false
}

const (
	// plainDigits is the length up to which an integer is written without exponent.
	plainDigits = 40
	// exponentDigits is the length of the longest exponent.
	exponentDigits = 100
)

// decimal writes a number as the shortest digits and an exponent, so that 1, 1.0
// and 10e-1 are one. Nothing is rounded, and a great exponent costs nothing.
func decimal(n json.Number) (json.Number, error) {
	text, sign := strings.CutPrefix(n.String(), "-")
	digits, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	whole, fraction, _ := strings.Cut(digits, ".")
	size := strings.TrimLeft(exponent, "+-0")
	if len(size) > exponentDigits {
		return "", fmt.Errorf("%w: an exponent of %d digits", ErrNotJSON, len(size))
	}
	power, _ := new(big.Int).SetString("0"+size, 10)
	if strings.HasPrefix(exponent, "-") {
		power.Neg(power)
	}
	digits = strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(digits, "0")
	if short == "" {
		return "0", nil
	}
	power.Add(power, big.NewInt(int64(len(digits)-len(short)-len(fraction))))
	out := short
	if zeros := power.Int64(); power.IsInt64() && zeros >= 0 && zeros <= plainDigits-int64(len(short)) {
		out += strings.Repeat("0", int(zeros))
	} else if power.Sign() != 0 {
		written := power.String()
		if len(strings.TrimPrefix(written, "-")) > exponentDigits {
			return "", fmt.Errorf("%w: an exponent that became too long", ErrNotJSON)
		}
		out += "e" + written
	}
	if sign {
		out = "-" + out
	}
	return json.Number(out), nil
}

func appendCanonical(out []byte, value any) []byte {
	switch value := value.(type) {
	case map[string]any:
		out = append(out, '{')
		for i, name := range slices.Sorted(maps.Keys(value)) {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(appendString(out, name), ':')
			out = appendCanonical(out, value[name])
		}
		return append(out, '}')
	case []any:
		out = append(out, '[')
		for i, element := range value {
			if i > 0 {
				out = append(out, ',')
			}
			out = appendCanonical(out, element)
		}
		return append(out, ']')
	case string:
		return appendString(out, value)
	case json.Number:
		return append(out, value...)
	case bool:
		return strconv.AppendBool(out, value)
	default:
		return append(out, "null"...)
	}
}

// appendString escapes what must be escaped, in one way. encoding/json has
// changed its own way between versions.
func appendString(out []byte, s string) []byte {
	out = append(out, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c < 0x20:
			out = fmt.Appendf(out, `\u%04x`, c)
		case c == '"', c == '\\':
			out = append(out, '\\', c)
		default:
			out = append(out, c)
		}
	}
	return append(out, '"')
}
