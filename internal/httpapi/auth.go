package httpapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/merchants"
)

// In echo's context.
const (
	merchantKey = "merchant"
	lookedKey   = "looked"
)

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
		k := knock{apiKey: strings.TrimSpace(key), key: a.keyAtTheDoor(c)}
		e, err := a.lookUp(c.Request().Context(), k)
		if err != nil {
			return err
		}
		c.Set(merchantKey, e.merchant)
		if k.key.Value != "" {
			c.Set(lookedKey, seen{looked: e.looked, old: time.After(longestSeen)})
		}
		return next(c)
	}
}

// lookUp asks the database for the merchant of an API key. A key that
// opened before is refused beyond its merchant's rate before that, any other one
// after: a flood of requests with a key costs no look-ups.
func (a *API) lookUp(ctx context.Context, k knock) (entered, error) {
	id := sha256.Sum256([]byte(k.apiKey))
	merchant := a.limits.known.merchant(id)
	if merchant != "" && !a.allows(merchant) {
		return entered{}, errRate
	}
	e, err := a.open(ctx, k, merchant)
	switch {
	case errors.Is(err, merchants.ErrUnauthorized):
		a.limits.known.forget(id)
		return entered{}, err
	case err != nil:
		return entered{}, err
	}
	a.limits.known.remember(id, e.merchant.ID)
	if merchant == "" && !a.allows(e.merchant.ID) {
		return entered{}, errRate
	}
	return e, nil
}

// open looks a key up in its turn, which depends on whose it was when it opened
// last: together with those of others, or after a wait in the line of those that
// opened nothing yet, each for itself.
func (a *API) open(ctx context.Context, k knock, last string) (e entered, err error) {
	if last != "" {
		if !a.limits.merchants.enter(last) {
			return entered{}, errBusy
		}
		defer a.limits.merchants.leave(last)
		door := a.door
		if k.key.Value != "" {
			door = a.keyedDoor
			if a.Intake.Keys.Observer.Reading != nil {
				defer a.Intake.Keys.Observer.Reading()()
			}
		}
		if e, err = door.Ask(ctx, k); err != nil {
			return entered{}, fmt.Errorf("authenticate: %w", err)
		}
		if e.merchant.ID == "" {
			return entered{}, merchants.ErrUnauthorized
		}
		return e, nil
	}
	done, err := a.limits.strangers.wait(ctx)
	if err != nil {
		return entered{}, err
	}
	defer done()
	e.merchant, err = merchants.Authenticate(ctx, a.DB, k.apiKey)
	return e, err
}

func merchantOf(c echo.Context) merchants.Merchant {
	m, _ := c.Get(merchantKey).(merchants.Merchant) // set by authenticate on every route that asks
	return m
}

// seen is what was read of a request's key when it was let in.
type seen struct {
	looked idempotency.KeyState
	old    <-chan time.Time // has something once it is
}

// longestSeen is for how long that counts: a body may come late, and the answer may
// have expired by then.
const longestSeen = time.Second

// lookedOf is what was read of a request's key a moment ago, if anything.
func lookedOf(c echo.Context) idempotency.KeyState {
	s, _ := c.Get(lookedKey).(seen)
	select {
	case <-s.old:
		return idempotency.KeyState{}
	default:
		return s.looked
	}
}
