package httpapi

import (
	"log/slog"
	"net/netip"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/merchants"
)

// isRequestID matches the X-Request-Id that is kept.
var isRequestID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`).MatchString

// exchange is what the layers know of a request and its answer.
type exchange struct {
	Result   Result             // see Answer
	client   netip.Addr         // invalid if the connection has no address
	merchant merchants.Merchant // of the API key
	keyID    string             // of the API key: its prefix, which is not secret
	body     []byte             // of a POST
	cause    error              // of a 5xx, for the log
}

const exchangeKey = "exchange" // in echo's context

func exchangeOf(c echo.Context) *exchange {
	e, _ := c.Get(exchangeKey).(*exchange) // begin sets it for every request
	return e
}

// begin makes the exchange of a request, and sets what every answer has: the caller's X-Request-Id if it has the form
// of one, else a new one, since it is stored with every event; and what keeps the answer from caches, and browsers from guessing its type.
//
// The server has dropped the Content-Length of a chunked body. A proxy may go by that
// length and take for one request what are two here: so nothing is read after a chunked
// body (RFC 9112, section 6.1).
func begin(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		client, _ := netip.ParseAddr(c.RealIP())
		c.Set(exchangeKey, &exchange{client: client.Unmap().WithZone("")})
		id := strings.Join(c.Request().Header.Values(echo.HeaderXRequestID), ",") // two are none
		if !isRequestID(id) {
			id = uuid.NewString()
		}
		h := c.Response().Header()
		h.Set(echo.HeaderXRequestID, id)
		h.Set(echo.HeaderCacheControl, "no-store")
		h.Set(echo.HeaderXContentTypeOptions, "nosniff")
		if len(c.Request().TransferEncoding) > 0 {
			h.Set(echo.HeaderConnection, "close")
		}
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
				slog.String("client", e.client.String()),
				slog.String("request_id", h.Get(echo.HeaderXRequestID))) // never the client's own text
			if e.keyID != "" {
				attrs = append(attrs, slog.String("merchant", e.merchant.ID), slog.String("key_id", e.keyID))
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
	Result Result // "" where none of them came about
}

// Result is what an API key, an idempotency key or an event of the provider led to.
type Result string

// What they lead to. Key… is said of a request whose idempotency key was read.
const (
	DeniedInvalid  Result = "invalid"     // the API key is not valid
	DeniedGuessing Result = "guessing"    // the API key was not read, since its address has sent too many
	KeyFirst       Result = "first"       // no request has used it
	KeyReplayed    Result = "replayed"    // a stored answer
	KeyReused      Result = "reused"      // another request's
	KeyExpired     Result = "expired"     // a tombstone
	KeyInUse       Result = "in_use"      // its first request did not end in time
	KeyUnavailable Result = "unavailable" // the store could not say
	EventSent      Result = "sent"        // to the worker: the event is about one of our charges
	EventClock     Result = "clock"       // refused for its time alone
)

// AnswerOf returns the answer to a request, for Config.Observe. Before the answer it has
// the method and the route.
func AnswerOf(c echo.Context) Answer {
	a := Answer{Method: "other", Route: c.Path(), Status: c.Response().Status, Result: exchangeOf(c).Result}
	switch method := c.Request().Method; method { // few, whatever callers send
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		a.Method = method
	}
	return a
}
