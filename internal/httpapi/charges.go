package httpapi

import (
	"net/url"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/ledger"
)

// createCharge is POST /v1/charges. The body is judged before the key, so a request that
// is refused for its body leaves the key free.
func (a *API) createCharge(c echo.Context) error {
	body, err := decode[intake.Charge](c, false)
	if err != nil {
		return err
	}
	if err := validate(body); err != nil {
		return err
	}
	request, err := a.keyed(c, body, "charge", body.OrderID)
	if err != nil {
		return err
	}
	outcome, err := a.Intake.AcceptCharge(c.Request().Context(), account(merchantOf(c)), request, body)
	return reply(c, outcome, err)
}

// cancelCharge is POST /v1/charges/{id}/cancel. Its body is empty or {}.
func (a *API) cancelCharge(c echo.Context) error {
	body, err := decode[struct{}](c, true)
	if err != nil {
		return err
	}
	id, err := chargeID(c)
	if err != nil {
		return err
	}
	request, err := a.keyed(c, body, "cancel", id)
	if err != nil {
		return err
	}
	request.Refusals = refusalsOfCharges(c)
	outcome, err := a.Intake.CancelCharge(c.Request().Context(), account(merchantOf(c)), request, id)
	return reply(c, outcome, err)
}

// createRefund is POST /v1/charges/{id}/refunds.
func (a *API) createRefund(c echo.Context) error {
	body, err := decode[intake.Refund](c, false)
	if err != nil {
		return err
	}
	if err := validateRefund(body); err != nil {
		return err
	}
	id, err := chargeID(c)
	if err != nil {
		return err
	}
	request, err := a.keyed(c, body, refundOperation, id)
	if err != nil {
		return err
	}
	request.Refusals = refusalsOfCharges(c)
	outcome, err := a.Intake.RequestRefund(c.Request().Context(), account(merchantOf(c)), request, id, body)
	return reply(c, outcome, err)
}

func account(m merchants.Merchant) intake.Account {
	return intake.Account{
		MerchantID: m.ID, FeeBasisPoints: m.FeeBasisPoints, FeeFixed: m.FeeFixed, Notify: m.HasWebhook,
	}
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
