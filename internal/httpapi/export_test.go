package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"
)

// RequestTimeout bounds what a request waits for.
var RequestTimeout = &requestTimeout

// ClientBehind finds the address of a client behind proxies.
var ClientBehind = clientBehind

// HoldsCard reports whether a text holds what may be a card number.
func HoldsCard(s string) bool { return holdsCard(s) }

// Problem is a refusal.
type Problem = problem //nolint:errname // the name in the contract

// Canonical is the form in which the body of a charge is fingerprinted.
func Canonical(body string) (string, error) {
	r := &http.Request{Header: http.Header{echo.HeaderContentType: {echo.MIMEApplicationJSON}}}
	c := echo.New().NewContext(r, nil)
	c.Set(exchangeKey, &exchange{body: []byte(body)})
	charge, err := decode(c, (&API{}).validate)
	canonical, _ := json.Marshal(charge)
	return string(canonical), err
}
