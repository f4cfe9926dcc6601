package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/payonce/payonce/idempotency"
)

// requestID keeps the caller's X-Request-Id if it is a short line of visible characters
// and no card number, and makes one otherwise: it is stored with every event.
func requestID(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := c.Request().Header.Get(echo.HeaderXRequestID)
		if !isReference(id, maxRequestID) || holdsCard(id) {
			id = uuid.NewString()
		}
		c.Response().Header().Set(echo.HeaderXRequestID, id)
		return next(c)
	}
}

// guardAnswer keeps answers from caches, unless a handler allows it, and from browsers that
// guess at their type.
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
		r := c.Request()
		if r.ContentLength > maxBody {
			return errTooLarge
		}
		r.Body = http.MaxBytesReader(c.Response(), r.Body, maxBody)
		return next(c)
	}
}

const corsAge = 3600 // seconds for which a browser may keep the answer to a preflight

// cors lets the pages of a.Origins call the API from a browser and read the headers of its
// answers. It sends no Access-Control-Allow-Credentials: the API knows no cookies, and a
// page sends its API key itself.
//
// It comes before authentication, since a preflight carries no key, and so that a page can
// read why it was refused.
func (a *API) cors() echo.MiddlewareFunc {
	return middleware.CORSWithConfig(middleware.CORSConfig{
		Skipper: func(c echo.Context) bool { return len(a.Origins) == 0 || isOrdinaryOptions(c.Request()) },
		// Not AllowOrigins: there * and ? would be patterns.
		AllowOriginFunc: func(origin string) (bool, error) { return slices.Contains(a.Origins, origin), nil },
		AllowHeaders: []string{
			echo.HeaderAuthorization, echo.HeaderContentType, headerKey, headerPrefer, echo.HeaderXRequestID,
		},
		ExposeHeaders: []string{
			headerKey, headerExpires, headerReplayed, headerRetryAfter, headerApplied, echo.HeaderLocation,
			echo.HeaderXRequestID, echo.HeaderWWWAuthenticate, echo.HeaderAllow, headerLink,
		},
		MaxAge: corsAge,
	})
}

// isOrdinaryOptions reports whether an OPTIONS request is not a browser's preflight.
func isOrdinaryOptions(r *http.Request) bool {
	return r.Method == http.MethodOptions &&
		(r.Header.Get(echo.HeaderOrigin) == "" || r.Header.Get(echo.HeaderAccessControlRequestMethod) == "")
}

// accessLog writes one line per request. Keys appear as short hashes.
func (a *API) accessLog() echo.MiddlewareFunc {
	return middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
		LogMethod: true, LogRoutePath: true, LogStatus: true, LogLatency: true,
		HandleError: true,
		LogValuesFunc: func(c echo.Context, v middleware.RequestLoggerValues) error {
			h := c.Response().Header()
			attrs := []any{
				"method", v.Method, "route", v.RoutePath, "status", v.Status,
				"milliseconds", v.Latency.Milliseconds(),
				"request_id", h.Get(echo.HeaderXRequestID), // never the client's own text
			}
			if key := h.Get(headerKey); key != "" {
				attrs = append(attrs, "key_hash", idempotency.Hash(key), "replayed", h.Get(headerReplayed) == "true")
			}
			if cause, ok := c.Get(causeKey).(error); ok {
				attrs = append(attrs, "error", cause.Error())
			}
			a.Log.InfoContext(c.Request().Context(), "request", attrs...)
			a.Observer.answered(c, v)
			return nil
		},
	})
}

func (a *API) panicked(c echo.Context, err error, stack []byte) error {
	a.Log.ErrorContext(c.Request().Context(), "handler panicked", "route", c.Path(), "error", err, "stack", string(stack))
	return err
}

// trace lets the observer see a request of the API from before its first middleware to the
// end of its answer.
func (a *API) trace(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if a.Observer.Serving == nil || !strings.HasPrefix(c.Path(), "/v1/") {
			return next(c)
		}
		r := c.Request()
		parents := r.Header.Values(headerTraceparent)
		if slices.ContainsFunc(parents, holdsCard) {
			parents = nil // it would be stored
		}
		ctx, served := a.Observer.Serving(r.Context(), usualMethod(r.Method), c.Path(), parents)
		c.SetRequest(r.WithContext(ctx))
		err := next(c)
		served(c.Response().Status, keyResult(c))
		return err
	}
}
