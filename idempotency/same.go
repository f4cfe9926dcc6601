package idempotency

import (
	"fmt"
	"reflect"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	v1 "github.com/go-json-experiment/json/v1"
)

// canonicalOf is the canonical JSON of any value, as encoding/json has it, which
// must tell all values apart that are not the same: encoding/json itself writes
// every byte that is not UTF-8 alike, and nothing of fields that are not exported.
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

// isHidden tells whether a type is a struct that has fields and exports none.
func isHidden(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.NumField() == 0 {
		return false
	}
	for _, field := range reflect.VisibleFields(t) {
		if field.IsExported() && !field.Anonymous && field.Tag.Get("json") != "-" {
			return false
		}
	}
	return true
}
