package httpapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/ledger"
)

// createCharge is POST /v1/charges. The body is judged before the key, so a
// request that is refused for its body leaves the key free.
func (a *API) createCharge(c echo.Context) error {
	body, err := decode[intake.Charge](c)
	if err != nil {
		return err
	}
	if err := validate(body); err != nil {
		return err
	}
	request, err := a.keyed(c, body, natural("charge", body.OrderID))
	if err != nil {
		return err
	}
	accepted, err := a.Intake.AcceptCharge(c.Request().Context(), account(merchantOf(c)), request, body)
	return reply(c, accepted, err)
}

func account(m merchants.Merchant) intake.Account {
	return intake.Account{
		MerchantID: m.ID, FeeBasisPoints: m.FeeBasisPoints, FeeFixed: m.FeeFixed, Notify: m.HasWebhook,
	}
}

// cancelCharge is POST /v1/charges/{id}/cancel. Its body is empty or {}.
func (a *API) cancelCharge(c echo.Context) error {
	body, err := decodeOptional[struct{}](c)
	if err != nil {
		return err
	}
	id, err := chargeID(c)
	if err != nil {
		return err
	}
	request, err := a.keyed(c, body, natural("cancel", id))
	if err != nil {
		return err
	}
	accepted, err := a.Intake.CancelCharge(c.Request().Context(), account(merchantOf(c)), request, id)
	return reply(c, accepted, err)
}

// getCharge is GET /v1/charges/{id}: the fold of the stream as it is now.
func (a *API) getCharge(c echo.Context) error {
	s, err := a.load(c)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, s.View())
}

type eventView struct {
	Version    int             `json:"version"`
	ID         string          `json:"id"`
	Type       string          `json:"type"`
	Data       json.RawMessage `json:"data"`
	RecordedAt time.Time       `json:"recorded_at"`
}

// getEvents is GET /v1/charges/{id}/events: the stream itself.
func (a *API) getEvents(c echo.Context) error {
	s, err := a.load(c)
	if err != nil {
		return err
	}
	views := make([]eventView, len(s.Events))
	for i, e := range s.Events {
		views[i] = eventView{
			Version: e.Version, ID: e.ID.String(), Type: e.Type, Data: e.Data, RecordedAt: e.RecordedAt.UTC(),
		}
	}
	return c.JSON(http.StatusOK, map[string]any{"data": views})
}

// load reads the charge of the path, if it is the caller's.
func (a *API) load(c echo.Context) (ledger.Stream, error) {
	id, err := chargeID(c)
	if err != nil {
		return ledger.Stream{}, err
	}
	s, err := ledger.Load(c.Request().Context(), a.tenant(c), id)
	if err == nil && s.Charge.MerchantID != merchantOf(c).ID {
		return ledger.Stream{}, ledger.ErrNotFound
	}
	return s, err
}

// chargeID is the id in the path. What cannot be one is refused before anything
// is stored about it.
func chargeID(c echo.Context) (string, error) {
	id := param(c, "id")
	if !utf8.ValidString(id) || hasNUL(id) || holdsCard(id) {
		return "", ledger.ErrNotFound
	}
	return id, nil
}

func (a *API) getBalances(c echo.Context) error {
	balances, err := ledger.ReadBalances(c.Request().Context(), a.tenant(c), merchantOf(c).ID)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, balances)
}

// getAudit is GET /v1/audit: every promise that our own tables can show, over what
// is the caller's. It reads whole tables, so few are under way at a time.
func (a *API) getAudit(c echo.Context) error {
	merchant := merchantOf(c).ID
	leave, err := a.limits.audits.enter(c.Request().Context(), merchant)
	if err != nil {
		return err
	}
	defer leave()
	report, err := audit.Run(c.Request().Context(), a.tenant(c))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, report)
}

// param is a part of the path, as it is meant: %63h_1 is ch_1.
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
