package httpapi

import (
	"log/slog"
	"net/http"
	"net/netip"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/payonce/payonce/idempotency"
)

// isRequestID matches the X-Request-Id that is kept.
var isRequestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`).MatchString

// exchange is what the layers know of a request and its answer.
type exchange struct {
	Answer

	client  netip.Addr // see clientOf
	session session
	body    []byte // of a POST
	unread  error  // why it could not be read
	cause   error  // of a 5xx, for the log
}

const exchangeKey = "exchange" // in echo's context

func exchangeOf(c echo.Context) *exchange {
	e, _ := c.Get(exchangeKey).(*exchange) // identify sets it for every request
	return e
}

// identify keeps the caller's X-Request-Id if it has the form of one, and makes one
// otherwise: it is stored with every event.
func identify(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		client, _ := netip.ParseAddr(c.RealIP())
		c.Set(exchangeKey, &exchange{client: client.Unmap().WithZone("")})
		id := strings.Join(c.Request().Header.Values(echo.HeaderXRequestID), ",") // two are none
		if !isRequestID(id) {
			id = uuid.NewString()
		}
		c.Response().Header().Set(echo.HeaderXRequestID, id)
		return next(c)
	}
}

// guardAnswer keeps answers from caches, and from browsers that guess at their type.
//
// The server has dropped the Content-Length of a chunked body. A proxy may go by that
// length and take for one request what are two here: so nothing is read after a chunked
// body (RFC 9112, section 6.1).
func guardAnswer(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		h.Set(echo.HeaderCacheControl, "no-store")
		h.Set(echo.HeaderXContentTypeOptions, "nosniff")
		if len(c.Request().TransferEncoding) > 0 {
			h.Set(echo.HeaderConnection, "close")
		}
		return next(c)
	}
}

// limitBody refuses a body that announces too large a size before anything else is read,
// and stops reading one that does not.
func limitBody(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r, most := c.Request(), int64(maxBody)
		if isEvent(c) {
			most = maxEvent
		}
		if r.ContentLength > most {
			return errTooLarge
		}
		r.Body = http.MaxBytesReader(c.Response(), r.Body, most)
		return next(c)
	}
}

// accessLog writes one line per request: what was asked and answered, by whom, and from where.
// Idempotency keys appear as short hashes, API keys by their prefixes once they were found valid.
func (a *API) accessLog() echo.MiddlewareFunc {
	return middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
		LogRoutePath: true, LogStatus: true, LogLatency: true, LogResponseSize: true,
		HandleError: true,
		LogValuesFunc: func(c echo.Context, v middleware.RequestLoggerValues) error {
			h, e := c.Response().Header(), exchangeOf(c)
			attrs := append(make([]slog.Attr, 0, 12),
				slog.String("method", AnswerOf(c).Method), slog.String("route", v.RoutePath), slog.Int("status", v.Status),
				slog.Int64("milliseconds", v.Latency.Milliseconds()), slog.Int64("bytes", v.ResponseSize),
				slog.String("client", clientOf(c).String()),
				slog.String("request_id", h.Get(echo.HeaderXRequestID))) // never the client's own text
			if e.session.keyID != "" {
				attrs = append(attrs, slog.String("merchant", e.session.ID), slog.String("key_id", e.session.keyID))
			}
			if key := h.Get(headerKey); key != "" {
				attrs = append(attrs, slog.String("key_hash", idempotency.Hash(key)), slog.Bool("replayed", h.Get(headerReplayed) == "true"))
			}
			if e.cause != nil {
				attrs = append(attrs, slog.String("error", e.cause.Error()))
			}
			a.Log.LogAttrs(c.Request().Context(), slog.LevelInfo, "request", attrs...)
			return nil
		},
	})
}

func (a *API) panicked(c echo.Context, err error, stack []byte) error {
	a.Log.ErrorContext(c.Request().Context(), "handler panicked", "route", c.Path(), "error", err, "stack", string(stack))
	return err
}

// Answer is a request with its answer. The caller chooses none of its values.
type Answer struct {
	Method string // "other" unless it is a usual one
	Route  string // as it is registered, "" where there is none
	Status int
	// Key is what the request's idempotency key led to, "" where none was read.
	Key KeyResult
	// Event is whether it is a provider event about one of our charges, which was sent to the worker.
	Event bool
	// Ignored is whether it is a provider event that is about no charge of ours, or of no use.
	Ignored bool
	// Clock is whether it is a provider event that was refused for its time alone.
	Clock bool
	// Denied is how the API key was refused, "" if it was not.
	Denied Denied
}

// Denied is how an API key is refused.
type Denied string

// An API key is refused as not valid, or unread since its address has sent too many.
const (
	DeniedInvalid  Denied = "invalid"
	DeniedGuessing Denied = "guessing"
)

// KeyResult is what an idempotency key led to.
type KeyResult string

// What a key leads to.
const (
	KeyFirst       KeyResult = "first"       // no request has used it
	KeyReplayed    KeyResult = "replayed"    // a stored answer
	KeyReused      KeyResult = "reused"      // another request's
	KeyExpired     KeyResult = "expired"     // a tombstone
	KeyInUse       KeyResult = "in_use"      // its first request did not end in time
	KeyUnavailable KeyResult = "unavailable" // the store could not say
)

// AnswerOf returns the answer to a request, for Config.Observe. Before the answer it has
// the method and the route.
func AnswerOf(c echo.Context) Answer {
	a := exchangeOf(c).Answer
	a.Method, a.Route, a.Status = "other", c.Path(), c.Response().Status
	switch method := c.Request().Method; method { // few, whatever callers send
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		a.Method = method
	}
	return a
}
