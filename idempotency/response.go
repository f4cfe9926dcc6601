package idempotency

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/payonce/payonce/groupcommit"
)

const (
	headerContentType = "Content-Type"
	headerLocation    = "Location"
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
		w.err = fmt.Errorf("%w: it has more than %d bytes", ErrNotStorable, w.most)
		return 0, w.err
	}
	return w.body.Write(part)
}

// FlushError refuses to send a part of a response, as http.ResponseController asks for.
func (w *recorder) FlushError() error {
	w.err = fmt.Errorf("%w: it is a stream", ErrNotStorable)
	return w.err
}

// Hijack refuses to hand over the connection.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, w.FlushError() }

// Problem is a response of Middleware itself, as RFC 9457 writes it.
type Problem struct {
	Type   string `json:"type"` // an address that explains it
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"` // what to do
	Err    error  `json:"-"`      // the cause
}

// Write writes the response, with Retry-After if the same request may pass in a second.
func (p Problem) Write(w http.ResponseWriter) {
	body, _ := json.Marshal(p) // text and a number can always be encoded
	w.Header().Set(headerContentType, "application/problem+json")
	if errors.Is(p.Err, ErrInFlight) || p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	send(w, p.Status, append(body, '\n'))
}

var errUnreadable = errors.New("the body cannot be read")

var problems = []struct {
	err    error
	name   string // in this package's documentation
	status int
	detail string
}{
	{ErrMissing, "ErrMissing", http.StatusBadRequest, "send an Idempotency-Key of your own, and the same one with each retry"},
	{ErrInvalid, "ErrInvalid", http.StatusBadRequest, "a key is 1 to 255 printable ASCII characters, once; a bare one has no space, comma, semicolon, quote or backslash, and a quoted one may"},
	{errUnreadable, "Middleware", http.StatusBadRequest, "send the whole body"},
	{ErrInFlight, "ErrInFlight", 0, "send the same request with the same key later"},
	{ErrExpired, "ErrExpired", http.StatusGone, "the request was carried out; it is not carried out again"},
	{ErrBodyTooLarge, "ErrBodyTooLarge", http.StatusRequestEntityTooLarge, "send a smaller body"},
	{ErrReused, "ErrReused", http.StatusUnprocessableEntity, "send another request with a new key; nothing was done"},
	{ErrNotStorable, "ErrNotStorable", http.StatusInternalServerError, "nothing was done"},
	{groupcommit.ErrNotCommitted, "ErrUnknown", http.StatusServiceUnavailable, "nothing was done: send the same request with the same key"},
	{ErrUnknown, "ErrUnknown", http.StatusServiceUnavailable, "send the same request with the same key: nothing is done twice"},
}

// problemOf is the response to an error.
func problemOf(err error, inFlight int) Problem {
	for _, p := range problems {
		if !errors.Is(err, p.err) {
			continue
		}
		if p.status == 0 {
			p.status = inFlight
		}
		return Problem{"https://pkg.go.dev/github.com/payonce/payonce/idempotency#" + p.name, p.err.Error(), p.status, p.detail, err}
	}
	return Problem{"about:blank", http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError, "nothing was done", err}
}
