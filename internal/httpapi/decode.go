package httpapi

import (
	"bytes"
	"errors"
	"mime"
	"net/http"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"
)

// strictly is how bodies are read.
var strictly = json.JoinOptions(json.RejectUnknownMembers(true), json.WithUnmarshalers(json.UnmarshalFromFunc(pairs)))

// decode reads a JSON object, strictly: one value, valid UTF-8, names as they are spelled
// here and once each, integers that are integers. The standard decoder reads
// {"amount":1,"AMOUNT":100} as 100; this one refuses it. A body that has no members may be empty,
// which equals {}. Others are validated.
func decode[T any](c echo.Context, validate func(T) error) (T, error) {
	var none T
	body := exchangeOf(c).body
	switch {
	case len(body) == 0 && validate == nil:
		return none, nil
	case len(body) > 0 && !saysJSON(c.Request().Header):
		return none, errUnsupportedMediaType
	}
	var v *T // stays nil for the body null, which is no object
	if err := json.Unmarshal(body, &v, strictly); err != nil || v == nil {
		return none, unreadable(err)
	}
	if bytes.Contains(bytes.ReplaceAll(body, []byte(`\\`), nil), []byte(`\u0000`)) { // JSON has no other spelling of it
		return none, errMalformed.because("a string holds the character U+0000")
	}
	if validate == nil {
		return *v, nil
	}
	return *v, validate(*v)
}

// saysJSON reports whether a header says, once, that a body is JSON in UTF-8 and not
// compressed. Anything else is refused, since a proxy may act on it.
func saysJSON(h http.Header) bool {
	types, coding := h.Values(echo.HeaderContentType), strings.Join(h.Values(echo.HeaderContentEncoding), ",")
	if len(types) != 1 || coding != "" && !strings.EqualFold(coding, "identity") {
		return false
	}
	media, parameters, err := mime.ParseMediaType(types[0])
	charset, given := parameters["charset"]
	utf8 := strings.EqualFold(charset, "utf-8") || strings.EqualFold(charset, "utf8") // not registered, and widely sent
	return err == nil && media == echo.MIMEApplicationJSON && (!given || utf8)
}

// pairs reads a map, in which null equals absent as it does everywhere: the
// decoder would read it as an empty string.
func pairs(d *jsontext.Decoder, m *map[string]string) error {
	var nullable map[string]*string
	if err := json.UnmarshalDecode(d, &nullable); err != nil {
		return err
	}
	*m = make(map[string]string, len(nullable))
	for name, value := range nullable {
		if value != nil {
			(*m)[name] = *value
		}
	}
	return nil
}

// plainName is the pointer of an unknown member that an answer may repeat. Any other
// name may be data, such as a card number.
var plainName = regexp.MustCompile(`^/[A-Za-z_]{1,40}((/[0-9]{1,3})?/[A-Za-z_]{1,40})*$`)

// unreadable says where a body is malformed, without repeating what it holds.
func unreadable(err error) problem {
	p := errMalformed.because("the body is not a JSON object of the expected form")
	var syntactic *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		p.Detail = "the body has a member that is not known here"
		if at := string(semantic.JSONPointer); plainName.MatchString(at) {
			p.Errors = []fieldError{{Pointer: at, Detail: "unknown member"}}
		}
	case errors.Is(err, jsontext.ErrDuplicateName):
		p.Detail = "the body repeats a member"
	case errors.As(err, &semantic) && semantic.JSONPointer != "" && !holdsCard(string(semantic.JSONPointer)):
		p.Detail = "a member has the wrong JSON type"
		p.Errors = []fieldError{{Pointer: string(semantic.JSONPointer), Detail: "wrong JSON type, or a number that is no 64-bit integer in digits alone"}}
	case errors.As(err, &syntactic):
		p.Detail = "the body is not JSON"
	}
	return p
}

// hasNUL reports whether a text holds U+0000, which PostgreSQL's text cannot hold.
func hasNUL(s string) bool { return strings.ContainsRune(s, 0) }
