package httpapi

import (
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/intake"
)

// createRefund is POST /v1/charges/{id}/refunds.
func (a *API) createRefund(c echo.Context) error {
	body, err := decode[intake.Refund](c)
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
	request, err := a.keyed(c, body, natural("refund", id).unlessGiven())
	if err != nil {
		return err
	}
	accepted, err := a.Intake.RequestRefund(c.Request().Context(), account(merchantOf(c)), request, id, body)
	if errors.Is(err, intake.ErrStep) {
		return invalid(fieldError{Pointer: "/amount", Detail: badStep})
	}
	return reply(c, accepted, err)
}

// getRefund is GET /v1/charges/{id}/refunds/{refund}.
func (a *API) getRefund(c echo.Context) error {
	s, err := a.load(c)
	if err != nil {
		return err
	}
	refund, requested := s.Charge.Refund(param(c, "refund"))
	if !requested {
		return domain.ErrNoRefund
	}
	return c.JSON(http.StatusOK, s.Charge.RefundView(refund))
}

// getRefunds is GET /v1/charges/{id}/refunds: all of them, oldest first.
func (a *API) getRefunds(c echo.Context) error {
	s, err := a.load(c)
	if err != nil {
		return err
	}
	views := make([]domain.RefundView, len(s.Charge.Refunds))
	for i, r := range s.Charge.Refunds {
		views[i] = s.Charge.RefundView(r)
	}
	return c.JSON(http.StatusOK, map[string]any{"data": views})
}
