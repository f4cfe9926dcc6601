package httpapi

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"
)

// decode reads a JSON body into v, strictly: one value, valid UTF-8, names as
// they are spelled here and once each, integers that are integers. The standard
// decoder takes {"amount":1,"AMOUNT":100} as 100; this one refuses it.
func decode(c echo.Context, v any) error {
	r := c.Request()
	media, _, err := mime.ParseMediaType(r.Header.Get(echo.HeaderContentType))
	if err != nil || media != echo.MIMEApplicationJSON {
		return unsupportedMediaType()
	}
	body, err := io.ReadAll(r.Body)
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		return tooLarge()
	}
	if err != nil {
		return malformed("the body could not be read to its end")
	}
	if err := json.Unmarshal(body, v, json.RejectUnknownMembers(true)); err != nil {
		return unreadable(err)
	}
	return nil
}

// unreadable says where a body is malformed, without repeating what it holds:
// an unknown name is the client's data too.
func unreadable(err error) problem {
	p := malformed("the body is not a JSON object of the expected form")
	var syntactic *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		p.Detail = "the body has a member that is not known here"
	case errors.Is(err, jsontext.ErrDuplicateName):
		p.Detail = "the body repeats a member"
	case errors.As(err, &semantic) && semantic.JSONPointer != "":
		p.Detail = "a member has the wrong JSON type"
		p.Errors = []fieldError{{Pointer: string(semantic.JSONPointer), Detail: "wrong JSON type, or a number that is no 64-bit integer"}}
	case errors.As(err, &syntactic):
		p.Detail = "the body is not JSON"
	}
	return p
}

// hasNUL: PostgreSQL's text cannot hold the character, so nobody may send it.
func hasNUL(s string) bool { return strings.ContainsRune(s, 0) }
