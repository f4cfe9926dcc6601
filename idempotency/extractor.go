package idempotency

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Extractor derives the key of a message from its headers and its payload.
// ErrMissing means that it does not apply to this message. Any other error means
// that it does, and that the message must not be taken: its key is no key.
type Extractor func(header map[string]string, payload []byte) (string, error)

// FirstOf asks one extractor after the other: the first one that applies wins,
// also with an error, since a fallback would let one message have two keys. It
// returns no key that Validate refuses. ErrMissing if none applies.
func FirstOf(extractors ...Extractor) Extractor {
	return func(header map[string]string, payload []byte) (string, error) {
		for _, extract := range extractors {
			key, err := extract(header, payload)
			if errors.Is(err, ErrMissing) {
				continue
			}
			if err == nil {
				err = Validate(key)
			}
			if err != nil {
				return "", err
			}
			return key, nil
		}
		return "", ErrMissing
	}
}

// FromHeader takes the key that the sender gave, best of all.
func FromHeader(name string) Extractor {
	return func(header map[string]string, _ []byte) (string, error) {
		value, ok := header[name]
		if !ok {
			return "", ErrMissing
		}
		return ParseKey([]string{value})
	}
}

// FromMembers makes a natural key of members of a JSON object, in the order
// given. It applies if the payload is an object that has them all. Each must be a
// string that is not empty or an integer, which is the same part as its digits;
// anything else is ErrUnstable.
func FromMembers(operation string, version int, members ...string) Extractor {
	return func(_ map[string]string, payload []byte) (string, error) {
		value, err := decode(payload)
		object, ok := value.(map[string]any)
		if err != nil || !ok {
			return "", ErrMissing
		}
		key := NaturalKey{Operation: operation, Version: version}
		for _, name := range members {
			value, ok := object[name]
			if !ok {
				return "", ErrMissing
			}
			part, ok := stablePart(value)
			if !ok {
				return "", fmt.Errorf("%w: member %q is neither text nor integer", ErrUnstable, name)
			}
			key.Parts = append(key.Parts, part)
		}
		if err := key.Validate(); err != nil {
			return "", err
		}
		return key.String(), nil
	}
}

func stablePart(value any) (string, bool) {
	switch value := value.(type) {
	case string:
		return value, true
	case json.Number: // canonical: an exponent means a fraction, or more than anybody counts
		return value.String(), !strings.Contains(value.String(), "e")
	default:
		return "", false
	}
}

// FromContent makes a key of all that the payload says. It applies to every message.
// See Content for the payload that goes with such a key.
func FromContent(source string) Extractor {
	return func(_ map[string]string, payload []byte) (string, error) {
		return ContentKey(source, payload)
	}
}
