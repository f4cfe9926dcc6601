package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/ledger/books"
)

// answer answers 200 with what a handler returns. The bytes of answers that are being sent are
// bounded: a client that does not read its answer loses its connection after writeTimeout.
func (a *API) answer(handle func(c echo.Context) (any, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		view, err := handle(c)
		if err != nil {
			return err
		}
		body, err := json.Marshal(view)
		if err != nil {
			return fmt.Errorf("encode an answer: %w", err)
		}
		return a.limits.answers.within(merchantOf(c).ID, len(body), func() error {
			return c.JSONBlob(http.StatusOK, append(body, '\n'))
		})
	}
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

// waitPoll is the first pause between two reads of a charge that a request waits for. Each pause is a tenth longer than
// the one before, so ten seconds have 25 reads. No notification is waited for: each would wake every api for every
// commit of the workers.
const waitPoll = 100 * time.Millisecond

// getCharge is GET /v1/charges/{id}: the fold of the stream as it is now. With Prefer: wait=N it
// is answered when a read finds its outcome or another status, or after N seconds. A request
// that waits holds no connection to the database between its reads. One more than may wait is answered at once.
func (a *API) getCharge(c echo.Context, s ledger.Stream) (any, error) {
	wait, merchant := preferredWait(c.Request().Header.Values(headerPrefer)), merchantOf(c).ID
	if wait == 0 || !a.limits.waits.take(merchant, 1) {
		return s.View(), nil
	}
	defer a.limits.waits.take(merchant, -1)
	before, ctx := s.Charge.Status, c.Request().Context()
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	defer context.AfterFunc(a.closing, cancel)()
	for pause := waitPoll; !s.Charge.HasOutcome() && s.Charge.Status == before && waiting.Err() == nil; pause += pause / 10 {
		loop.Pause(waiting, pause, nil)
		var err error
		if s, err = ledger.Load(ctx, a.tenant(c), s.ID); err != nil {
			return nil, err
		}
	}
	return s.View(), nil
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

// followEvents is GET /v1/events: what the caller's webhooks say, in the order of
// transaction ids.
func (a *API) followEvents(c echo.Context) (any, error) {
	after, limit := "", defaultCharges
	err := readQuery(c, &limit, map[string]*string{"after": &after})
	if err != nil {
		return nil, err
	}
	return books.ReadFeed(c.Request().Context(), a.tenant(c), merchantOf(c).ID, after, limit)
}

// getBalances is GET /v1/balances: the caller's balances.
func (a *API) getBalances(c echo.Context) (any, error) {
	return books.ReadBalances(c.Request().Context(), a.tenant(c), merchantOf(c).ID)
}

// Bounds of a page.
const (
	defaultCharges = 20
	maxCharges     = 100
)

var statuses = []domain.Status{domain.Pending, domain.RequiresAction, domain.Succeeded, domain.Failed, domain.PartiallyRefunded, domain.Refunded}

// readQuery reads the parameters of a list: these texts, and a limit. A parameter that is unknown, or there twice, is
// refused: a misspelled filter must not answer with everything. An empty one equals none.
func readQuery(c echo.Context, limit *int, texts map[string]*string) error {
	given, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return invalid(fieldError{"", "the query cannot be read"})
	}
	var k checker
	for _, name := range slices.Sorted(maps.Keys(given)) {
		value, pointer := given.Get(name), "/"+name
		text, known := texts[name]
		switch {
		case !known && name != "limit": // the name may be anything, such as a card number
			k.refuse("", "has a parameter other than limit, "+strings.Join(slices.Sorted(maps.Keys(texts)), ", "))
		case len(given[name]) > 1:
			k.refuse(pointer, "is there more than once")
		case !utf8.ValidString(value) || hasNUL(value):
			k.refuse(pointer, "is no text")
		case value == "":
		case name == "limit": // is written in one way: 5, and neither +5 nor 05
			*limit, err = strconv.Atoi(value)
			if err != nil || *limit < 1 || *limit > maxCharges || strconv.Itoa(*limit) != value {
				k.refuse(pointer, fmt.Sprint("is not between 1 and ", maxCharges))
			}
		case name == "status" && !slices.Contains(statuses, domain.Status(value)):
			k.refuse(pointer, fmt.Sprintf("is none of %v", statuses))
		default:
			*text = value
			k.id(pointer, value, false, maxString)
		}
	}
	return k.verdict()
}
