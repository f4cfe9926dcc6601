package httpapi

import (
	"reflect"

	"github.com/payonce/payonce/intake"
)

// Answers are the types of this package that are written to callers, by the names
// of their schemas.
func Answers() map[string]reflect.Type {
	return map[string]reflect.Type{
		"Event":      reflect.TypeFor[eventView](),
		"Key":        reflect.TypeFor[keyView](),
		"Problem":    reflect.TypeFor[problem](),
		"FieldError": reflect.TypeFor[fieldError](),
	}
}

// ReadCharge reads a body as POST /v1/charges does.
func ReadCharge(body []byte) (intake.Charge, error) { return readJSON[intake.Charge](body) }

// ValidateCharge judges what was read.
func ValidateCharge(r intake.Charge) error { return validate(r) }
