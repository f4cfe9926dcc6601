package httpapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/internal/merchants"
)

const merchantKey = "merchant" // in echo's context

// authenticate lets a request under /v1 pass with the merchant of its API key,
// whether the route exists or not. Every reason to refuse has the same answer,
// be the key missing, malformed, unknown, expired or revoked. What the key is for
// is a question of the route (needs).
func (a *API) authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !strings.HasPrefix(c.Request().URL.Path, "/v1/") || isEvent(c) {
			return next(c)
		}
		given := c.Request().Header.Values(echo.HeaderAuthorization)
		if len(given) != 1 { // of two, what stands before us may have looked at the other
			return merchants.ErrUnauthorized
		}
		scheme, key, _ := strings.Cut(given[0], " ")
		if !strings.EqualFold(scheme, "Bearer") || key == "" {
			return merchants.ErrUnauthorized
		}
		m, err := a.lookUp(c.Request().Context(), strings.TrimSpace(key))
		if err != nil {
			return err
		}
		c.Set(merchantKey, m)
		return next(c)
	}
}

// lookUp asks the database for the merchant of an API key. A key that
// opened before is refused beyond its merchant's rate before that, any other one
// after: a flood of requests with a key costs no look-ups.
func (a *API) lookUp(ctx context.Context, key string) (merchants.Merchant, error) {
	id := sha256.Sum256([]byte(key))
	merchant := a.limits.known.merchant(id)
	if merchant != "" && !a.allows(merchant) {
		return merchants.Merchant{}, errRate
	}
	m, err := a.open(ctx, key, merchant)
	switch {
	case errors.Is(err, merchants.ErrUnauthorized):
		a.limits.known.forget(id)
		return merchants.Merchant{}, err
	case err != nil:
		return merchants.Merchant{}, err
	}
	a.limits.known.remember(id, m.ID)
	if merchant == "" && !a.allows(m.ID) {
		return merchants.Merchant{}, errRate
	}
	return m, nil
}

// open looks a key up in its turn, which depends on whose it was when it opened
// last: together with those of others, or after a wait in the line of those that
// opened nothing yet, each for itself.
func (a *API) open(ctx context.Context, key, last string) (merchants.Merchant, error) {
	if last != "" {
		if !a.limits.merchants.enter(last) {
			return merchants.Merchant{}, errBusy
		}
		defer a.limits.merchants.leave(last)
		return a.doorkeeper.Authenticate(ctx, key)
	}
	done, err := a.limits.strangers.wait(ctx)
	if err != nil {
		return merchants.Merchant{}, err
	}
	defer done()
	return merchants.Authenticate(ctx, a.DB, key)
}

func merchantOf(c echo.Context) merchants.Merchant {
	m, _ := c.Get(merchantKey).(merchants.Merchant) // set by authenticate on every route that asks
	return m
}
