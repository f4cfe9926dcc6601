package httpapi

import (
	"context"
	"net/url"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/ledger"
)

// createCharge is POST /v1/charges. The body is judged before the key, so a request that
// is refused for its body leaves the key free.
func (a *API) createCharge(c echo.Context) error {
	body, err := decode(c, false, validate)
	if err != nil {
		return err
	}
	return a.keyed(c, body, "charge", body.OrderID, func(ctx context.Context, account intake.Account, r intake.Request) (idempotency.Outcome, error) {
		return a.Intake.AcceptCharge(ctx, account, r, body)
	})
}

// cancelCharge is POST /v1/charges/{id}/cancel. Its body is empty or {}.
func (a *API) cancelCharge(c echo.Context) error {
	body, err := decode[struct{}](c, true, nil)
	if err != nil {
		return err
	}
	id, err := chargeID(c)
	if err != nil {
		return err
	}
	return a.keyed(c, body, "cancel", id, func(ctx context.Context, account intake.Account, r intake.Request) (idempotency.Outcome, error) {
		r.Refusals = refusalsOfCharges(c)
		return a.Intake.CancelCharge(ctx, account, r, id)
	})
}

// createRefund is POST /v1/charges/{id}/refunds.
func (a *API) createRefund(c echo.Context) error {
	body, err := decode(c, false, validateRefund)
	if err != nil {
		return err
	}
	id, err := chargeID(c)
	if err != nil {
		return err
	}
	return a.keyed(c, body, refundOperation, id, func(ctx context.Context, account intake.Account, r intake.Request) (idempotency.Outcome, error) {
		r.Refusals = refusalsOfCharges(c)
		return a.Intake.RequestRefund(ctx, account, r, id, body)
	})
}

// chargeID is the id in the path. What cannot be one is refused before anything is stored
// about it.
func chargeID(c echo.Context) (string, error) {
	id := param(c, "id")
	if !utf8.ValidString(id) || hasNUL(id) || holdsCard(id) {
		return "", ledger.ErrNotFound
	}
	return id, nil
}

// param is a part of the path, decoded: %63h_1 is ch_1.
func param(c echo.Context, name string) string {
	raw := c.Param(name)
	if c.Request().URL.RawPath == "" { // the router has matched what is decoded
		return raw
	}
	decoded, err := url.PathUnescape(raw)
	if err != nil {
		return raw // the path of a URL that was parsed: it cannot fail
	}
	return decoded
}
