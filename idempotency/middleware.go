package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// Headers of keyed requests and responses.
const (
	HeaderKey      = "Idempotency-Key"
	HeaderReplayed = "Idempotent-Replayed" // "true" on a replay
)

var (
	// ErrBodyTooLarge is answered to a request whose body is larger than MaxBody.
	ErrBodyTooLarge = errors.New("the body is too large to be compared")
	// ErrNotStorable is the error of a response that no replay could repeat: it is a stream
	// (Flush, Hijack), larger than MaxResponse, has a stored header that is not UTF-8, or the
	// handler wrote none. Nothing is stored.
	ErrNotStorable = errors.New("the response cannot be stored under an idempotency key")

	errNotStored = errors.New("the response is not stored") // by HTTPOptions.Stores
)

// HTTPOptions of Middleware. The zero value is usable.
type HTTPOptions struct {
	// Methods are those that need a key, in any case of their letters; POST and PATCH if nil.
	// Other requests pass through.
	Methods []string
	// Headers are the response headers that a replay repeats; Content-Type, Content-Encoding
	// and Location if nil. The first response has all that the handler set.
	Headers []string
	// Stores reports whether a response with a status is stored, of those between 200 and
	// 499; StoresStatus if nil. Another response is sent after a rollback: the handler's
	// writes are undone and the key is free.
	Stores func(status int) bool
	// MaxBody and MaxResponse bound what is held in memory, in bytes; 1 MiB each if zero.
	MaxBody, MaxResponse int
	// Retention, Wait, Slots and OnCommit are those of Options.
	Retention time.Duration
	Wait      time.Duration
	Slots     chan struct{}
	OnCommit  func(CommitResult)
	// InFlight is the status if another request under the key is in flight after Wait: 409 if
	// zero; 425 and 202 are usual too.
	InFlight int
	// Problem writes the responses of the middleware itself; Problem.Write if nil.
	Problem func(w http.ResponseWriter, r *http.Request, p Problem)
	// Log receives the causes of responses of 500 and above; slog.Default() if nil.
	Log *slog.Logger
}

// StoresStatus is the default of HTTPOptions.Stores: 2xx to 4xx, but no status that the same
// request may pass later: with other credentials (401, 403), or after a while (408, 409, 425
// and 429).
func StoresStatus(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return true
}

type txKey struct{}

// Tx returns the transaction of the request's key, through which a handler behind Middleware
// writes; nil outside of it. The handler must not end it, and makes no network call while it
// is open.
func Tx(ctx context.Context) pgx.Tx {
	tx, _ := ctx.Value(txKey{}).(pgx.Tx)
	return tx
}

// Middleware carries out each request under an Idempotency-Key once
// (draft-ietf-httpapi-idempotency-key-header) and replays its status, headers and body, byte
// for byte. The key, the handler's writes through Tx and the response are one transaction,
// and the response is sent after its COMMIT. A response of 400 or above is stored too, and
// undoes the handler's writes; see HTTPOptions.Stores for those that are not. A panic rolls
// back and goes on.
//
// scope returns the owner of a request's key, such as its authenticated tenant. With nil,
// all clients share their keys and each other's responses.
//
// Middleware itself answers 400 for a key that is missing or malformed, 409 in flight
// (HTTPOptions.InFlight), 410 expired, 413 for a body that is too large, 422 for a key of
// another request, 500 for ErrNotStorable and 503 for ErrUnknown, as RFC 9457 writes it.
// Requests are the same if method, path, query, media type and body are; of a body of JSON
// the value counts, not its spelling.
//
// Nothing may read the body before. Responses of 1xx and trailers are not sent. A handler
// must not use Tx after it returns: http.TimeoutHandler belongs around Middleware.
//
// It is any router's middleware: net/http's, chi's, and Echo's by echo.WrapMiddleware. There,
// let an inner middleware write the errors of handlers (c.Error): a response that Echo writes
// later is not in the transaction, and the request ends as ErrNotStorable.
func Middleware(db Beginner, scope func(*http.Request) string, o HTTPOptions) func(http.Handler) http.Handler {
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if o.Headers == nil {
		o.Headers = []string{headerContentType, "Content-Encoding", headerLocation}
	}
	if o.Stores == nil {
		o.Stores = StoresStatus
	}
	if o.Problem == nil {
		o.Problem = func(w http.ResponseWriter, _ *http.Request, p Problem) { p.Write(w) }
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.MaxBody, o.MaxResponse = cmp.Or(o.MaxBody, 1<<20), cmp.Or(o.MaxResponse, 1<<20)
	o.InFlight = cmp.Or(o.InFlight, http.StatusConflict)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !slices.ContainsFunc(o.Methods, func(method string) bool { return strings.EqualFold(method, r.Method) }) {
				next.ServeHTTP(w, r)
				return
			}
			key := Key{Operation: "HTTP"} // for all methods: another one under a key is another request
			if scope != nil {
				key.Scope = scope(r)
			}
			o.serve(db, key, w, r, next)
		})
	}
}

func (o HTTPOptions) serve(db Beginner, key Key, w http.ResponseWriter, r *http.Request, next http.Handler) {
	var (
		first   *recorder // the handler's response, if it ran
		outcome Result
		body    []byte
		err     error
	)
	if key.Value, err = ParseKey(r.Header.Values(HeaderKey)); err == nil {
		body, err = o.read(w, r)
	}
	if err == nil {
		outcome, err = once(r.Context(), db, key, Options{
			Request: Request{Fingerprint: fingerprintOf(r, body)}, Retention: o.Retention, Wait: o.Wait, Slots: o.Slots, OnCommit: o.OnCommit,
		}, func(ctx context.Context, tx pgx.Tx) (Answer, error) {
			first = &recorder{header: w.Header().Clone(), most: o.MaxResponse}
			inner := r.WithContext(context.WithValue(ctx, txKey{}, tx))
			inner.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(first, inner)
			return o.answer(first)
		})
	}
	switch {
	case errors.Is(err, errNotStored) || err == nil && !outcome.Replayed:
		clear(w.Header())
		maps.Copy(w.Header(), first.sent)
		send(w, first.status, first.body.Bytes())
	case err != nil:
		p := problemOf(err, o.InFlight)
		if p.Status >= http.StatusInternalServerError {
			o.Log.ErrorContext(r.Context(), "keyed request failed", "error", err, "key_hash", Hash(key.Value))
		}
		setUnlessEmpty(w.Header(), headerLocation, outcome.Location) // of an expired answer
		o.Problem(w, r, p)
	default:
		maps.Copy(w.Header(), outcome.Header)
		setUnlessEmpty(w.Header(), headerContentType, outcome.ContentType)
		setUnlessEmpty(w.Header(), headerLocation, outcome.Location)
		w.Header().Set(HeaderReplayed, "true")
		send(w, outcome.StatusCode, outcome.Body)
	}
}

func send(w http.ResponseWriter, status int, body []byte) {
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

func setUnlessEmpty(h http.Header, name, value string) {
	if value != "" {
		h.Set(name, value)
	}
}

// read reads the body, which is compared and then handed to the handler.
func (o HTTPOptions) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(o.MaxBody)))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, ErrBodyTooLarge
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	if len(body) == 0 && r.ContentLength > 0 {
		return nil, errors.New("the body was read before the middleware, which compares it")
	}
	return body, nil
}

func fingerprintOf(r *http.Request, body []byte) []byte {
	media, _, _ := mime.ParseMediaType(r.Header.Get(headerContentType)) // empty if it is none
	if media == "application/json" || strings.HasSuffix(media, "+json") {
		if canonical, err := Canonical(body); err == nil {
			body = canonical
		}
	}
	query := r.URL.RawQuery
	if values, err := url.ParseQuery(query); err == nil {
		query = values.Encode()
	}
	return Fingerprint([]byte("http.v1"), []byte(r.Method), []byte(r.URL.EscapedPath()), []byte(query), []byte(media), body)
}

// answer is what is stored of a response.
func (o HTTPOptions) answer(w *recorder) (Answer, error) {
	if w.err == nil && w.status == 0 {
		w.err = fmt.Errorf("%w: the handler wrote none", ErrNotStorable)
	}
	if w.err != nil {
		return Answer{}, w.err
	}
	if w.status >= http.StatusInternalServerError || !o.Stores(w.status) {
		return Answer{}, errNotStored
	}
	a := Answer{StatusCode: w.status, Body: w.body.Bytes(), Header: http.Header{}}
	for _, name := range o.Headers {
		values := w.sent.Values(name)
		if text := strings.Join(values, ""); !utf8.ValidString(text) || strings.Contains(text, "\x00") {
			return Answer{}, fmt.Errorf("%w: its %s is not UTF-8", ErrNotStorable, name)
		}
		switch name = http.CanonicalHeaderKey(name); {
		case len(values) == 0:
		case name == headerContentType:
			a.ContentType = values[0]
		case name == headerLocation:
			a.Location = values[0]
		default:
			a.Header[name] = values
		}
	}
	return a, nil
}
