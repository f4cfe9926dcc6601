package httpapi

import (
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/idempotency"
)

// naturalKey is the key that a request has by what it is about.
type naturalKey struct {
	idempotency.NaturalKey
	yields bool // to the client's own key
}

func natural(operation, subject string) naturalKey {
	return naturalKey{NaturalKey: idempotency.NaturalKey{
		Parts: []string{subject}, Operation: operation, Version: 1,
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
// itself: an order is then charged once, whatever header comes with it. Only a
// header that names a version, v2, means the same work once more, on purpose: the
// order whose card was declined.
func (a *API) key(c echo.Context, n naturalKey) (string, error) {
	given := c.Request().Header.Values(headerKey)
	if a.NaturalKeys {
		if version, named := versionIn(given); named {
			n.Version = version
			return n.String(), nil
		}
		if !n.yields || len(given) == 0 {
			return n.String(), nil // made of what was checked already
		}
	}
	return givenKey(c)
}

// givenKey is the client's key.
func givenKey(c echo.Context) (string, error) {
	key, err := idempotency.ParseKey(c.Request().Header.Values(headerKey))
	if err == nil && holdsCard(key) {
		return "", cardAsKey()
	}
	return key, err
}

// maxVersion bounds versions to what people count.
const maxVersion = 999

// versionIn reads v1, v2 and so on.
func versionIn(values []string) (version int, named bool) {
	key, err := idempotency.ParseKey(values)
	digits, found := strings.CutPrefix(key, "v")
	if err != nil || !found {
		return 0, false
	}
	version, err = strconv.Atoi(digits)
	return version, err == nil && version >= 1 && version <= maxVersion && strconv.Itoa(version) == digits
}
