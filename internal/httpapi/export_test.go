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

// Reader reads bodies as the API does.
type Reader = bodyRules

// NewReader is what an API makes once.
func NewReader() Reader { return newBodyRules() }

// Charge reads a body as POST /v1/charges does.
func (s bodyRules) Charge(body []byte) (intake.Charge, error) {
	return readJSON[intake.Charge](s, body)
}

// ValidateCharge judges what was read.
func ValidateCharge(r intake.Charge) error { return validate(r) }

// KnownKeys remember whose the keys are that opened something lately.
type KnownKeys = knownKeys

// NewKnownKeys remember so many.
func NewKnownKeys(most int) *KnownKeys { k := newKnownKeys(most); return &k }

// Remember is that a key opened, for a merchant.
func (k *knownKeys) Remember(id [32]byte, merchant string) { k.remember(id, merchant) }

// Merchant is whose the key was.
func (k *knownKeys) Merchant(id [32]byte) string { return k.merchant(id) }

// Forget is that a key opened nothing.
func (k *knownKeys) Forget(id [32]byte) { k.forget(id) }
