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

// listQuery reads the parameters of listCharges.
func listQuery(raw string) (ledger.ListQuery, error) {
	q := ledger.ListQuery{Limit: defaultCharges}
	var k checker
	return q, k.query(raw, func(name, value string) { k.parameter(&q, name, value) })
}

// query reads the parameters of a list. One that is misspelled, or there twice, is
// refused: all there is would be no answer to whoever asked for some. An empty one
// is the same as none.
func (k *checker) query(raw string, parameter func(name, value string)) error {
	given, err := url.ParseQuery(raw)
	if err != nil {
		return invalid(fieldError{"", "the query cannot be read"})
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		value := given.Get(name)
		switch {
		case len(given[name]) > 1:
			k.refuse(pointerTo(name), "is there more than once")
		case !utf8.ValidString(value) || hasNUL(value):
			k.refuse(pointerTo(name), "is no text")
		default:
			parameter(name, value)
		}
	}
	return k.verdict()
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
		if value != "" && !slices.Contains(statuses, q.Status) {
			k.refuse("/status", fmt.Sprintf("is none of %v", statuses))
		}
	case "limit":
		k.limit(&q.Limit, value, maxCharges)
	default:
		k.unknown(name)
	}
}

func (k *checker) unknown(name string) { k.refuse(pointerTo(name), "is no parameter of this list") }

// limit is how many a page holds, if that is said.
func (k *checker) limit(limit *int, value string, most int) {
	n, ok := whole(value)
	switch {
	case value == "":
	case !ok || n < 1 || n > int64(most):
		k.refuse("/limit", "is not between 1 and "+strconv.Itoa(most))
	default:
		*limit = int(n)
	}
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

var statuses = []domain.Status{domain.Pending, domain.Succeeded, domain.Failed, domain.PartiallyRefunded, domain.Refunded}
