package httpapi

import (
	"errors"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/ledger"
)

const abandonPath = "/v1/idempotency-keys/:key/abandon"

// abandonment is what became of a key that its owner has given up.
type abandonment struct {
	Abandoned  bool         `json:"abandoned"`        // no request under the key took effect, and none will
	StatusCode int          `json:"status_code"`      // of the answer under the key
	Charge     *domain.View `json:"charge,omitempty"` // that was accepted before
}

// abandonKey is POST /v1/idempotency-keys/{key}/abandon. A key that no charge was requested
// under is taken. A charge that was is canceled if it still can be. The client may ask again
// at any time: it gets what is true then.
func (a *API) abandonKey(c echo.Context) (any, error) {
	if _, err := decode[struct{}](c, nil); err != nil {
		return nil, err
	}
	given, err := keyOfPath(c)
	if err != nil {
		return nil, err
	}
	ctx, account := c.Request().Context(), a.account(c)
	p := errKeyAbandoned
	p.Instance = chargesPath
	r := a.request(c, http.MethodPost+" "+chargesPath, storedKey(given), nil)
	err = a.Intake.Abandon(ctx, account, r, problemAnswer(p.Status, p.encoded()))
	if err == nil {
		return abandonment{Abandoned: true, StatusCode: p.Status}, nil
	}
	if !errors.Is(err, idempotency.ErrReused) && !errors.Is(err, idempotency.ErrExpired) {
		return nil, err
	}
	state, err := a.Intake.Options.ReadKey(ctx, a.tenant(c), r.Key)
	if err != nil {
		return nil, err
	}
	known := abandonment{StatusCode: state.StatusCode}
	id, isCharge := strings.CutPrefix(state.Header.Get(echo.HeaderLocation), chargesPath+"/")
	if !isCharge {
		known.Abandoned = known.StatusCode == p.Status // long ago
		return known, nil
	}
	cancel := a.request(c, operation(c), storedKey(given), nil)
	cancel.Refuse, cancel.Fingerprint = refuseOf(c), nil // however the path spells the key
	if _, err := a.Intake.CancelCharge(ctx, account, cancel, id); err != nil && !errors.Is(err, idempotency.ErrExpired) {
		return nil, err
	}
	s, err := ledger.Load(ctx, a.tenant(c), id)
	if err != nil {
		return nil, err
	}
	view := s.View()
	known.Charge = &view
	return known, nil
}
