package httpapi

import "reflect"

// RequestTimeout bounds what a request waits for.
var RequestTimeout = &requestTimeout

// HoldsCard reports whether a text holds what may be a card number.
func HoldsCard(s string) bool { return holdsCard(s) }

// Answers are the types of this package that are written to callers, by the names
// of their schemas.
func Answers() map[string]reflect.Type {
	return map[string]reflect.Type{
		"EventBase":  reflect.TypeFor[eventView](),
		"Key":        reflect.TypeFor[keyView](),
		"Problem":    reflect.TypeFor[problem](),
		"FieldError": reflect.TypeFor[fieldError](),
	}
}
