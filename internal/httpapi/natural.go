package httpapi

import (
	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/idempotency"
)

// naturalKey is the key that a request has by what it is about.
type naturalKey struct {
	idempotency.NaturalKey
	yields bool // to the client's own key
}

// naturalVersion is in every natural key: an operation that comes to mean
// something else gets another one.
const naturalVersion = 1

func natural(operation, subject string) naturalKey {
	return naturalKey{NaturalKey: idempotency.NaturalKey{
		Parts: []string{subject}, Operation: operation, Version: naturalVersion,
	}}
}

// unlessGiven is for operations that may be meant twice: a charge can be given
// back in several parts, and only the client can tell a second part from a
// repetition.
func (n naturalKey) unlessGiven() naturalKey {
	n.yields = true
	return n
}

// key is the client's key or, in the mode of natural keys, that of the request
// itself: an order is then charged once, whatever header comes with it.
func (a *API) key(c echo.Context, n naturalKey) (string, error) {
	given := c.Request().Header.Values(headerKey)
	if a.NaturalKeys && (!n.yields || len(given) == 0) {
		return n.String(), nil // made of what was checked already
	}
	key, err := idempotency.ParseKey(given)
	if err == nil && holdsCard(key) {
		return "", cardAsKey()
	}
	return key, err
}
