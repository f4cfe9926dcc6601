package httpapi

import (
	"context"
	"encoding/json"
	"net/url"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/ledger/books"
)

// createCharge is POST /v1/charges.
func (a *API) createCharge(ctx context.Context, account intake.Account, r intake.Request, _ string, body intake.Charge) (idempotency.Result, error) {
	return a.Intake.AcceptCharge(ctx, account, r, body)
}

// cancelCharge is POST /v1/charges/{id}/cancel. Its body is empty or {}.
func (a *API) cancelCharge(ctx context.Context, account intake.Account, r intake.Request, id string, _ struct{}) (idempotency.Result, error) {
	return a.Intake.CancelCharge(ctx, account, r, id)
}

// chargeID is the id in the path, "" where there is none. What cannot be one is refused before
// anything is stored about it.
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
	// Without a raw path the router has matched what is decoded.
	if decoded, err := url.PathUnescape(raw); err == nil && c.Request().URL.RawPath != "" {
		return decoded
	}
	return raw
}

// listCharges is GET /v1/charges: a page of the ledger's charges, newest first.
func (a *API) listCharges(c echo.Context) (any, error) {
	q := books.ListQuery{MerchantID: merchantOf(c).ID, Limit: defaultCharges}
	err := readQuery(c, &q.Limit, map[string]*string{
		"order_id": &q.OrderID, "starting_after": &q.StartingAfter, "status": (*string)(&q.Status),
	})
	if err != nil {
		return nil, err
	}
	return books.ListCharges(c.Request().Context(), a.tenant(c), q)
}

// ofCharge answers with what view makes of the charge of the path, if it is the caller's.
func (a *API) ofCharge(view func(c echo.Context, s ledger.Stream) (any, error)) echo.HandlerFunc {
	return a.answer(func(c echo.Context) (any, error) {
		id, err := chargeID(c)
		if err != nil {
			return nil, err
		}
		s, err := ledger.Load(c.Request().Context(), a.tenant(c), id)
		switch {
		case err != nil:
			return nil, err
		case s.Charge.MerchantID != merchantOf(c).ID:
			return nil, ledger.ErrNotFound
		}
		return view(c, s)
	})
}

type eventView struct {
	Version    int             `json:"version"`
	ID         string          `json:"id"`
	Type       string          `json:"type"`
	Data       json.RawMessage `json:"data"`
	RecordedAt time.Time       `json:"recorded_at"`
}

// getEvents is GET /v1/charges/{id}/events: the stream itself.
func getEvents(_ echo.Context, s ledger.Stream) (any, error) {
	views := make([]eventView, len(s.Events))
	for i, e := range s.Events {
		views[i] = eventView{e.Version, e.ID.String(), e.Type, e.Data, e.RecordedAt.UTC()}
	}
	return map[string]any{"data": views}, nil
}

// getRefund is GET /v1/charges/{id}/refunds/{refund}.
func getRefund(c echo.Context, s ledger.Stream) (any, error) {
	refund, requested := s.Charge.Refund(param(c, "refund"))
	if !requested {
		return nil, errUnknownRefund
	}
	return s.Charge.RefundView(refund), nil
}

// getRefunds is GET /v1/charges/{id}/refunds: all of them, oldest first.
func getRefunds(_ echo.Context, s ledger.Stream) (any, error) {
	views := make([]domain.RefundView, len(s.Charge.Refunds))
	for i, r := range s.Charge.Refunds {
		views[i] = s.Charge.RefundView(r)
	}
	return map[string]any{"data": views}, nil
}
