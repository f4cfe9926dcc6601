package idempotency

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"
)

// recorder holds a response until its transaction has committed.
type recorder struct {
	header http.Header
	sent   http.Header // as it was with the status: changes come too late
	status int         // 0 until it is written
	body   bytes.Buffer
	most   int   // bytes of the body
	err    error // why it cannot be stored
}

// Header returns the headers to be sent.
func (w *recorder) Header() http.Header { return w.header }

// WriteHeader notes the status. Informational responses (1xx) are not sent.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status, w.sent = status, w.header.Clone()
	}
}

// Write holds a part of the body.
func (w *recorder) Write(part []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.body.Len()+len(part) > w.most {
		w.err = fmt.Errorf("%w: it has more than %d bytes", errNotStorable, w.most)
		return 0, w.err
	}
	return w.body.Write(part)
}

var (
	errNotStorable = errors.New("the response cannot be stored under an idempotency key")
	errNotStored   = errors.New("the response is not stored") // see stores
)

// answer is what is stored of a response. Headers that others have set before the handler are
// theirs to set on a replay too. One that the handler deleted has no value.
func (w *recorder) answer(before http.Header) (Answer, error) {
	a := Answer{StatusCode: w.status, Header: http.Header{}, Body: w.body.Bytes()}
	switch {
	case w.err != nil:
		return a, w.err
	case w.status == 0:
		return a, fmt.Errorf("%w: the handler wrote none", errNotStorable)
	case !stores(w.status):
		return a, errNotStored
	}
	for name := range before {
		if _, kept := w.sent[name]; !kept {
			a.Header[name] = []string{}
		}
	}
	for name, values := range w.sent {
		text := strings.Join(values, "")
		switch {
		case slices.Equal(values, before[name]), name == "Set-Cookie", name == "Date":
		case name == "Content-Encoding":
			return a, fmt.Errorf("%w: it is encoded, which belongs around the middleware", errNotStorable)
		case !utf8.ValidString(text), strings.Contains(text, "\x00"):
			return a, fmt.Errorf("%w: its %s is not UTF-8", errNotStorable, name)
		default:
			a.Header[name] = values
		}
	}
	return a, nil
}

// statuses of what the middleware itself answers; 0 is HTTPOptions.InFlight.
var statuses = []struct {
	err    error
	status int
}{
	{ErrMissing, http.StatusBadRequest},
	{ErrInvalid, http.StatusBadRequest},
	{errUnreadable, http.StatusBadRequest},
	{ErrUnknown, http.StatusServiceUnavailable},
	{ErrInFlight, 0},
	{ErrExpired, http.StatusGone},
	{errTooLarge, http.StatusRequestEntityTooLarge},
	{ErrReused, http.StatusUnprocessableEntity},
}

func statusOf(err error, inFlight int) int {
	for _, s := range statuses {
		if errors.Is(err, s.err) {
			return cmp.Or(s.status, inFlight)
		}
	}
	return http.StatusInternalServerError
}

// writeProblem writes an error as RFC 9457 says, with Retry-After if the same request may pass
// in a second. Of a fault of the server it does not say more than that.
func writeProblem(w http.ResponseWriter, _ *http.Request, status int, err error) {
	title := http.StatusText(status)
	if status < http.StatusInternalServerError {
		title = err.Error()
	}
	if errors.Is(err, ErrInFlight) || errors.Is(err, ErrUnknown) {
		w.Header().Set("Retry-After", "1")
	}
	body, _ := json.Marshal(map[string]any{"type": "about:blank", "title": title, "status": status}) // it can always be encoded
	w.Header().Set(headerContentType, "application/problem+json")
	send(w, status, append(body, '\n'))
}
