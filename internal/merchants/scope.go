package merchants

import (
	"fmt"
	"slices"
	"strings"
)

// Scope is what an API key may be used for. None includes another.
type Scope string

// The scopes, which are stored under these names.
const (
	ChargesWrite Scope = "charges:write" // ask for charges and cancel them
	ChargesRead  Scope = "charges:read"  // read charges, refunds, idempotency keys and balances
	RefundsWrite Scope = "refunds:write" // ask for refunds
	Admin        Scope = "admin"         // the operators' routes, over what is the merchant's
)

// Scopes are all there are.
func Scopes() []Scope { return []Scope{ChargesWrite, ChargesRead, RefundsWrite, Admin} }

// ParseScopes reads names of scopes, each once in the answer, in the order of
// Scopes. An unknown name is an error, and so is no name.
func ParseScopes(names []string) ([]Scope, error) {
	known := Scopes()
	for _, name := range names {
		if !slices.Contains(known, Scope(name)) {
			return nil, fmt.Errorf("%q is no scope: the scopes are %s", name, list(known))
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("a key has at least one of the scopes %s", list(known))
	}
	return slices.DeleteFunc(known, func(s Scope) bool { return !slices.Contains(names, string(s)) }), nil
}

func list(scopes []Scope) string {
	names := make([]string, len(scopes))
	for i, s := range scopes {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}
