package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// HTTPOptions of Middleware. The zero value is usable.
type HTTPOptions struct {
	Options

	// Scope returns the owner of a request's key, such as its authenticated tenant. If nil, all clients share their
	// keys and each other's responses.
	Scope func(*http.Request) string
	// Fingerprint returns the same bytes for requests that are the same, see Middleware for the default. Where
	// clients compress, or sign each sending, leave out what is new in a retry.
	Fingerprint func(r *http.Request, body []byte) []byte
	// MaxBytes bounds a request and a response, which are held in memory; 1 MiB if zero.
	MaxBytes int
	// Error writes the responses of the middleware itself; as RFC 9457 says if nil. It may choose another status.
	Error func(w http.ResponseWriter, r *http.Request, status int, err error)
}

type txKey struct{}

// Tx returns the transaction of the request's key, through which a handler behind Middleware writes; nil outside of
// it. The handler must not end it, and makes no network call while it is open.
func Tx(ctx context.Context) pgx.Tx {
	tx, _ := ctx.Value(txKey{}).(pgx.Tx)
	return tx
}

// Middleware carries out each POST and PATCH under an Idempotency-Key once
// (draft-ietf-httpapi-idempotency-key-header) and replays its status, headers and body, byte for byte, with
// Idempotent-Replayed: true. The key, the handler's writes through Tx and the response are one transaction; the
// response is sent after COMMIT. One of 400 or above undoes the handler's writes, and is stored unless it is a 5xx or
// one that the same request may pass later (401, 403, 408, 409, 425, 429): that frees the key, as a panic does.
//
// Without a Fingerprint, requests are the same if method, path, query, media type and body are: a body of JSON as
// Content compares it, a multipart body but for the boundary.
//
// The handler begins with empty headers. What it sets takes the place of what was set around Middleware, and is
// stored, but for Set-Cookie and Date, which are of one client or time. 1xx, trailers and Flush are not supported.
//
// Middleware itself answers 400 for a key that is missing or malformed, 409 in flight, 410 expired, 413 for a body
// that is too large, 422 for a key of another request, 503 for ErrUnknown, and 500 for a response that no replay
// could repeat: one larger than MaxBytes, encoded, with a header that is not UTF-8, or none. None of these is stored.
//
// Compression belongs around Middleware: a stored gzip body would be replayed to a client that cannot read it. So
// does http.TimeoutHandler, since a handler must not use Tx after it returns. Nothing may read the body before. It is
// any router's middleware; in Echo (echo.WrapMiddleware) an inner one must write the errors of handlers (c.Error).
func Middleware(db Beginner, o HTTPOptions) func(http.Handler) http.Handler {
	o.MaxBytes = cmp.Or(o.MaxBytes, 1<<20)
	if o.Scope == nil {
		o.Scope = func(*http.Request) string { return "" }
	}
	if o.Fingerprint == nil {
		o.Fingerprint = fingerprintOf
	}
	if o.Error == nil {
		o.Error = writeProblem
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { o.serve(db, w, r, next) })
	}
}

func (o HTTPOptions) serve(db Beginner, w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Method != http.MethodPost && r.Method != http.MethodPatch {
		next.ServeHTTP(w, r)
		return
	}
	var first *recorder // the handler's response, if it ran
	var result Result
	var body []byte
	value, err := ParseKey(r.Header.Values("Idempotency-Key"))
	key := Key{Scope: o.Scope(r), Operation: "HTTP", Value: value} // for all methods: another one under a key is another request
	if err == nil {
		body, err = o.readBody(w, r)
	}
	if err == nil {
		result, err = o.inTransaction(r.Context(), db, key, Request{Fingerprint: o.Fingerprint(r, body)}, func(ctx context.Context, tx pgx.Tx) (Answer, error) {
			first = &recorder{header: http.Header{}, most: o.MaxBytes}
			inner := r.WithContext(context.WithValue(ctx, txKey{}, tx))
			inner.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(first, inner)
			return first.answer()
		})
	}
	switch {
	case errors.Is(err, errNotStored) && !errors.Is(err, ErrUnknown), err == nil && !result.Replayed:
		send(w, first.sent)
	case err != nil:
		status := statusOf(err)
		if status >= http.StatusInternalServerError {
			slog.ErrorContext(r.Context(), "keyed request failed", "error", err, "key_hash", Hash(key.Value)) //nolint:sloglint // the program's
		}
		maps.Copy(w.Header(), result.Header) // of an expired answer
		o.Error(w, r, status, err)
	default:
		w.Header().Set("Idempotent-Replayed", "true")
		send(w, result.Answer)
	}
}

func send(w http.ResponseWriter, a Answer) {
	maps.Copy(w.Header(), a.Header)
	w.WriteHeader(a.StatusCode)
	_, _ = w.Write(a.Body) // the client may be gone
}

// readBody reads the body, which is compared and then handed to the handler.
func (o HTTPOptions) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	given := cmp.Or[io.ReadCloser](r.Body, http.NoBody) // nil in a request that no server has read
	body, err := io.ReadAll(http.MaxBytesReader(w, given, int64(o.MaxBytes)))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	case len(body) == 0 && r.ContentLength > 0:
		return nil, errors.New("the body was read before the middleware, which compares it")
	}
	return body, nil
}

// fingerprintOf is the default of HTTPOptions.Fingerprint.
func fingerprintOf(r *http.Request, body []byte) []byte {
	media, parameters, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // empty if it is none
	switch {
	case media == "application/json" || strings.HasSuffix(media, "+json"):
		if canonical, err := canonicalOf(body); err == nil {
			body = canonical
		}
	case strings.HasPrefix(media, "multipart/"): // what lies between the boundaries, which are new in each sending
		body = Fingerprint(bytes.Split(append([]byte("\r\n"), body...), []byte("\r\n--"+parameters["boundary"]))...)
	}
	return Fingerprint([]byte("http.v2"), []byte(r.Method), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery), []byte(media), body)
}

// recorder holds a response until its transaction has committed.
type recorder struct {
	header http.Header
	sent   Answer // its status is 0 until it is written, its header as it was then: changes come too late
	most   int    // bytes of the body
}

// Header returns the headers to be sent.
func (w *recorder) Header() http.Header { return w.header }

// WriteHeader notes the status. Informational responses (1xx) are not sent.
func (w *recorder) WriteHeader(status int) {
	if w.sent.StatusCode == 0 && status >= http.StatusOK {
		w.sent.StatusCode, w.sent.Header = status, w.header.Clone()
	}
}

// Write holds a part of the body, up to the byte that is too much.
func (w *recorder) Write(part []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.sent.Body = append(w.sent.Body, part[:min(len(part), w.most+1-len(w.sent.Body))]...)
	return len(part), nil
}

// answer is what is stored of a response.
func (w *recorder) answer() (Answer, error) {
	a := w.sent
	a.Header = maps.Clone(a.Header)
	a.Header.Del("Set-Cookie")
	a.Header.Del("Date")
	switch {
	case len(a.Body) > w.most:
		return a, fmt.Errorf("%w: it has more than %d bytes", errNotStorable, w.most)
	case a.StatusCode == 0:
		return a, fmt.Errorf("%w: the handler wrote none", errNotStorable)
	case a.StatusCode >= http.StatusInternalServerError, slices.Contains(passLater, a.StatusCode):
		return a, errNotStored
	case a.Header["Content-Encoding"] != nil:
		return a, fmt.Errorf("%w: it is encoded, which belongs around the middleware", errNotStorable)
	}
	return a, nil
}

// passLater are statuses that the same request may pass later: with other credentials, or after a while.
var passLater = []int{
	http.StatusUnauthorized, http.StatusForbidden,
	http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests,
}

var (
	errUnreadable  = errors.New("the body cannot be read")
	errNotStorable = errors.New("the response cannot be stored under an idempotency key")
	errNotStored   = errors.New("the response is not stored") // a 5xx, or one of passLater
)

// statusOf is the status of what the middleware itself answers.
func statusOf(err error) int {
	switch _, tooLarge := errors.AsType[*http.MaxBytesError](err); {
	case tooLarge:
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, ErrUnknown): // whatever else it is
		return http.StatusServiceUnavailable
	case errors.Is(err, ErrMissing), errors.Is(err, ErrInvalid), errors.Is(err, errUnreadable):
		return http.StatusBadRequest
	case errors.Is(err, ErrInFlight):
		return http.StatusConflict
	case errors.Is(err, ErrExpired):
		return http.StatusGone
	case errors.Is(err, ErrReused):
		return http.StatusUnprocessableEntity
	}
	return http.StatusInternalServerError
}

// writeProblem writes an error as RFC 9457 says, but not that of a fault of the server, and Retry-After if the same
// request may pass in a second.
func writeProblem(w http.ResponseWriter, _ *http.Request, status int, err error) {
	title := http.StatusText(status)
	if status < http.StatusInternalServerError {
		title = err.Error()
	}
	if errors.Is(err, ErrInFlight) || errors.Is(err, ErrUnknown) {
		w.Header().Set("Retry-After", "1")
	}
	body, _ := json.Marshal(map[string]any{"type": "about:blank", "title": title, "status": status}) // it can always be encoded
	send(w, Answer{StatusCode: status, Header: http.Header{"Content-Type": {"application/problem+json"}}, Body: append(body, '\n')})
}
