package httpapi

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/ledger"
)

// Bounds of a page of charges.
const (
	defaultCharges = 20
	maxCharges     = 100
)

// listCharges is GET /v1/charges: a page of the projection, newest first.
func (a *API) listCharges(c echo.Context) error {
	q, err := listQuery(c.Request().URL.RawQuery)
	if err != nil {
		return err
	}
	q.MerchantID = merchantOf(c).ID
	page, err := ledger.ListCharges(c.Request().Context(), a.tenant(c), q)
	if errors.Is(err, ledger.ErrNoCursor) {
		return invalid(fieldError{"/starting_after", "is no charge of yours"})
	}
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, page)
}

// listQuery reads the parameters. One that is misspelled, or there twice, is
// refused: all charges are no answer to whoever asked for some. An empty one is
// the same as none.
func listQuery(raw string) (ledger.ListQuery, error) {
	q := ledger.ListQuery{Limit: defaultCharges}
	given, err := url.ParseQuery(raw)
	if err != nil {
		return q, invalid(fieldError{"", "the query cannot be read"})
	}
	var k checker
	for _, name := range slices.Sorted(maps.Keys(given)) {
		value := given.Get(name)
		switch {
		case len(given[name]) > 1:
			k.refuse(pointerTo(name), "is there more than once")
		case !utf8.ValidString(value) || hasNUL(value):
			k.refuse(pointerTo(name), "is no text")
		default:
			k.parameter(&q, name, value)
		}
	}
	return q, k.verdict()
}

func (k *checker) parameter(q *ledger.ListQuery, name, value string) {
	switch name {
	case "order_id":
		q.OrderID = value
		k.text("/order_id", value, false, maxString)
	case "starting_after":
		q.StartingAfter = value
		k.text("/starting_after", value, false, maxString)
	case "status":
		q.Status = domain.Status(value)
		if value != "" && !slices.Contains(statuses(), q.Status) {
			k.refuse("/status", fmt.Sprintf("is none of %v", statuses()))
		}
	case "limit":
		n, err := strconv.Atoi(value)
		switch {
		case value == "":
		case err != nil || n < 1 || n > maxCharges:
			k.refuse("/limit", "is not between 1 and "+strconv.Itoa(maxCharges))
		default:
			q.Limit = n
		}
	default:
		k.refuse(pointerTo(name), "is no parameter of this list")
	}
}

// pointerTo names a parameter as a client wrote it, unless that must not be repeated.
func pointerTo(name string) string {
	if !utf8.ValidString(name) || hasNUL(name) || holdsCard(name) {
		return ""
	}
	return "/" + escape(name)
}

func statuses() []domain.Status {
	return []domain.Status{domain.Pending, domain.Succeeded, domain.Failed, domain.PartiallyRefunded, domain.Refunded}
}
