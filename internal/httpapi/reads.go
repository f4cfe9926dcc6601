package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/domain"
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
