package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/ledger"
)

// Bounds of a page of charges.
const (
	defaultCharges = 20
	maxCharges     = 100
)

var statuses = []domain.Status{domain.Pending, domain.Succeeded, domain.Failed, domain.PartiallyRefunded, domain.Refunded}

// answer answers 200 with what a handler returns.
func answer(handle func(c echo.Context) (any, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		view, err := handle(c)
		if err != nil {
			return err
		}
		return c.JSON(http.StatusOK, view)
	}
}

// listCharges is GET /v1/charges: a page of the projection, newest first.
func (a *API) listCharges(c echo.Context) (any, error) {
	q := ledger.ListQuery{MerchantID: merchantOf(c).ID, Limit: defaultCharges}
	err := readQuery(c, map[string]func(*checker, string){
		"order_id": func(k *checker, value string) {
			q.OrderID = value
			k.text("/order_id", value, false, maxString)
		},
		"starting_after": func(k *checker, value string) {
			q.StartingAfter = value
			k.text("/starting_after", value, false, maxString)
		},
		"status": func(k *checker, value string) {
			if q.Status = domain.Status(value); !slices.Contains(statuses, q.Status) {
				k.refuse("/status", fmt.Sprintf("is none of %v", statuses))
			}
		},
		"limit": func(k *checker, value string) { q.Limit = k.limit(value, maxCharges) },
	})
	if err != nil {
		return nil, err
	}
	return ledger.ListCharges(c.Request().Context(), a.tenant(c), q)
}

// ofCharge answers with what view makes of the charge of the path, if it is the caller's.
func (a *API) ofCharge(view func(c echo.Context, s ledger.Stream) (any, error)) echo.HandlerFunc {
	return answer(func(c echo.Context) (any, error) {
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

// getCharge is GET /v1/charges/{id}: the fold of the stream as it is now.
func getCharge(_ echo.Context, s ledger.Stream) (any, error) { return s.View(), nil }

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
		return nil, domain.ErrNoRefund
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

// getBalances is GET /v1/balances: the caller's books as they are now.
func (a *API) getBalances(c echo.Context) (any, error) {
	return ledger.ReadBalances(c.Request().Context(), a.tenant(c), merchantOf(c).ID)
}

// getAudit is GET /v1/audit: every promise that our own tables can show, over what is the
// caller's. It reads whole tables, so few are in flight at a time.
func (a *API) getAudit(c echo.Context) (any, error) {
	leave, err := a.limits.audits.enter(merchantOf(c).ID)
	if err != nil {
		return nil, err
	}
	defer leave()
	return audit.Run(c.Request().Context(), a.tenant(c))
}

// readQuery reads the parameters of a list. A parameter that is unknown, or there twice, is
// refused: a misspelled filter must not answer with everything. An empty one equals none.
func readQuery(c echo.Context, parameters map[string]func(k *checker, value string)) error {
	given, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return invalid(fieldError{"", "the query cannot be read"})
	}
	var k checker
	for _, name := range slices.Sorted(maps.Keys(given)) {
		value := given.Get(name)
		read, known := parameters[name]
		switch {
		case len(given[name]) > 1:
			k.refuse(pointerTo(name), "is there more than once")
		case !utf8.ValidString(value) || hasNUL(value):
			k.refuse(pointerTo(name), "is no text")
		case !known:
			k.refuse(pointerTo(name), "is no parameter of this list")
		case value != "":
			read(&k, value)
		}
	}
	return k.verdict()
}

// limit is the size of a page.
func (k *checker) limit(value string, most int) int {
	n, ok := whole(value)
	if !ok || n < 1 || n > int64(most) {
		k.refuse("/limit", "is not between 1 and "+strconv.Itoa(most))
	}
	return int(n)
}

// whole reads a number as it is written in one way: 5, and neither +5 nor 05.
func whole(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && strconv.FormatInt(n, 10) == text
}

// pointerTo names a parameter as a client wrote it, unless that must not be repeated.
func pointerTo(name string) string {
	if !utf8.ValidString(name) || hasNUL(name) || holdsCard(name) {
		return ""
	}
	return "/" + escape(name)
}
