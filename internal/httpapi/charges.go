package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/ledger"
)

// Headers of keyed requests and answers.
const (
	headerKey        = "Idempotency-Key"
	headerExpires    = "Idempotency-Expires"
	headerReplayed   = "Idempotent-Replayed"
	headerRetryAfter = "Retry-After"
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
	request, err := keyed(c, body)
	if err != nil {
		return err
	}
	accepted, err := a.Intake.AcceptCharge(c.Request().Context(), account(merchantOf(c)), request, body)
	return reply(c, accepted, err)
}

// keyed reads the idempotency key of a request and fingerprints it: method,
// path, merchant and the typed body, so that white space, the order of members
// and escapes do not count.
func keyed(c echo.Context, body any) (intake.Request, error) {
	value, err := idempotency.ParseKey(c.Request().Header.Values(headerKey))
	if err != nil {
		return intake.Request{}, err
	}
	if holdsCard(value) {
		return intake.Request{}, cardAsKey()
	}
	c.Response().Header().Set(headerKey, value)
	canonical, err := json.Marshal(body)
	if err != nil {
		return intake.Request{}, fmt.Errorf("encode a request: %w", err)
	}
	merchant := merchantOf(c).ID
	return intake.Request{
		Key: idempotency.Key{Scope: merchant, Operation: c.Request().Method + " " + c.Path(), Value: value},
		Fingerprint: idempotency.Fingerprint([]byte("v1"), []byte(c.Request().Method),
			[]byte(c.Request().URL.Path), []byte(merchant), canonical),
		ID: c.Response().Header().Get(echo.HeaderXRequestID),
	}, nil
}

func account(m merchants.Merchant) intake.Account {
	return intake.Account{
		MerchantID: m.ID, FeeBasisPoints: m.FeeBasisPoints, FeeFixed: m.FeeFixed, Notify: m.HasWebhook,
	}
}

// reply sends an accepted answer as it is stored.
func reply(c echo.Context, a intake.Accepted, err error) error {
	h := c.Response().Header()
	if !a.ExpiresAt.IsZero() {
		h.Set(headerExpires, a.ExpiresAt.UTC().Format(http.TimeFormat))
	}
	if a.Location != "" {
		h.Set(echo.HeaderLocation, a.Location)
	}
	if err != nil {
		return err
	}
	if a.Replayed {
		h.Set(headerReplayed, "true")
	}
	return c.Blob(a.StatusCode, a.ContentType, a.Body)
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
	id := c.Param("id")
	if !utf8.ValidString(id) || hasNUL(id) {
		return ledger.Stream{}, ledger.ErrNotFound
	}
	s, err := ledger.Load(c.Request().Context(), a.DB, id)
	if err == nil && s.Charge.MerchantID != merchantOf(c).ID {
		return ledger.Stream{}, ledger.ErrNotFound
	}
	return s, err
}

func (a *API) getBalances(c echo.Context) error {
	balances, err := ledger.ReadBalances(c.Request().Context(), a.DB, merchantOf(c).ID)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, balances)
}

// getAudit is GET /v1/audit: every promise that our own tables can show.
func (a *API) getAudit(c echo.Context) error {
	report, err := audit.Run(c.Request().Context(), a.DB)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, report)
}
