package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
)

// Bounds of a request.
const (
	maxBody        = 64 << 10 // bytes
	maxHeaders     = 16 << 10 // bytes
	maxRequestID   = 128      // characters
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = 60 * time.Second
	requestTimeout = 20 * time.Second
)

// API serves the routes of payonce.
type API struct {
	DB     Database
	Intake *intake.Intake
	// InFlight is the status that answers a key whose first request is still
	// being committed: 409, 425 or 202.
	InFlight int
	// NaturalKeys says that a request's key is what the request is about.
	NaturalKeys bool
	// StripeSecrets sign the provider's events: one, two while it is changed. None
	// refuses every event.
	StripeSecrets []string
	// Limits bound what callers can take.
	Limits Limits
	// Ready says what keeps the program from serving, "" if nothing does. Anybody
	// may ask, as often as he likes.
	Ready func(context.Context) (why string, err error)
	// Origins are the web pages' that may call from a browser. None may, unless set.
	Origins []string
	// Now is the clock that the time of a signature is compared with, and rates.
	Now func() time.Time
	Log *slog.Logger
	// Observer counts.
	Observer Observer
	// Carry is what of a request's context goes along with the messages that it
	// causes; nothing does where it is nil.
	Carry func(context.Context) map[string]string
	// Metrics serves GET /metrics; nobody does where it is nil.
	Metrics http.Handler

	receiving chan struct{} // holds one for each event that is being received
	limits    *limits
	door      *postgres.Reads[knock, entered] // for who has no idempotency key
	keyedDoor *postgres.Reads[knock, entered] // where a lock on idempotency keys holds up nobody else
	bodies    bodyRules
}

// Server is an HTTP server for the API with every time-out set. It is not
// started.
func (a *API) Server() *http.Server {
	return &http.Server{
		Handler:           a.Handler(),
		MaxHeaderBytes:    maxHeaders,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug),
		// OPTIONS * is refused as every path that is not served, by a problem.
		DisableGeneralOptionsHandler: true,
	}
}

// Handler routes requests.
func (a *API) Handler() http.Handler {
	a.receiving = make(chan struct{}, receiveAtOnce)
	a.limits = newLimits(a.Limits)
	a.door, a.keyedDoor = newDoor(a.DB, a.Limits.Authenticating), newDoor(a.DB, (a.Limits.Authenticating+1)/2)
	a.bodies = newBodyRules()
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = a.problem
	e.Use(
		a.serving,
		requestID,
		guardAnswer,
		a.accessLog(),
		middleware.RecoverWithConfig(middleware.RecoverConfig{LogErrorFunc: a.panicked}),
		middleware.ContextTimeout(requestTimeout),
		a.cors(),
		limitBody,
		a.authenticate, // and the rate
		a.limitWork,
	)
	read(e, "/healthz", a.healthz)
	read(e, "/readyz", a.readyz)
	read(e, "/metrics", a.getMetrics)
	read(e, "/openapi.yaml", a.getContract)
	read(e, "/docs", a.getDocs)
	read(e, "/docs/:file", a.getDocsFile)
	e.POST(chargesPath, a.createCharge, needs(merchants.ChargesWrite))
	read(e, chargesPath, a.listCharges, needs(merchants.ChargesRead))
	read(e, "/v1/charges/:id", a.getCharge, needs(merchants.ChargesRead))
	read(e, "/v1/charges/:id/events", a.getEvents, needs(merchants.ChargesRead))
	e.POST(cancelPath, a.cancelCharge, needs(merchants.ChargesWrite))
	e.POST(refundsPath, a.createRefund, needs(merchants.RefundsWrite))
	read(e, refundsPath, a.getRefunds, needs(merchants.ChargesRead))
	read(e, "/v1/charges/:id/refunds/:refund", a.getRefund, needs(merchants.ChargesRead))
	read(e, "/v1/idempotency-keys/:key", a.getKey, needs(merchants.ChargesRead))
	read(e, "/v1/inbox", a.getInbox, needs(merchants.Admin))
	e.POST("/v1/inbox/:id/retry", a.retryMessage, needs(merchants.Admin))
	e.POST("/v1/inbox/:id/discard", a.discardMessage, needs(merchants.Admin))
	e.POST(stripePath, a.receiveStripe)
	read(e, "/v1/balances", a.getBalances, needs(merchants.ChargesRead))
	read(e, "/v1/audit", a.getAudit, needs(merchants.Admin))
	return e
}

// read registers a route for GET and HEAD.
func read(e *echo.Echo, path string, h echo.HandlerFunc, m ...echo.MiddlewareFunc) {
	e.Match([]string{http.MethodGet, http.MethodHead}, path, h, m...)
}

// requestID keeps the caller's X-Request-Id where it is a short line of visible
// characters and no card number, and makes one elsewhere: it is stored with
// every event.
func requestID(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := c.Request().Header.Get(echo.HeaderXRequestID)
		plain := len(id) <= maxRequestID &&
			strings.IndexFunc(id, func(r rune) bool { return r < '!' || r > '~' }) < 0
		if id == "" || !plain || holdsCard(id) {
			id = uuid.NewString()
		}
		c.Response().Header().Set(echo.HeaderXRequestID, id)
		return next(c)
	}
}

// guardAnswer keeps answers from caches, but for those that say how they may be
// kept, and from browsers that would guess at their type.
//
// Of a body in chunks that also had a Content-Length the server has dropped the
// latter. What stands before us may go by that one, and take for one request what
// are two to us: so nothing is read after chunks (RFC 9112, section 6.1).
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

// limitBody refuses a body that says it is too large before anything else is
// looked at, and stops reading one that does not say so.
func limitBody(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if r.ContentLength > maxBody {
			return tooLarge()
		}
		r.Body = http.MaxBytesReader(c.Response(), r.Body, maxBody)
		return next(c)
	}
}

func (a *API) carried(ctx context.Context) map[string]string {
	if a.Carry == nil {
		return nil
	}
	return a.Carry(ctx)
}

// accessLog writes one line per request. Keys appear as short hashes.
func (a *API) accessLog() echo.MiddlewareFunc {
	return middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
		LogMethod: true, LogRoutePath: true, LogStatus: true, LogLatency: true,
		HandleError: true,
		LogValuesFunc: func(c echo.Context, v middleware.RequestLoggerValues) error {
			attrs := []any{
				"method", v.Method, "route", v.RoutePath, "status", v.Status,
				"milliseconds", v.Latency.Milliseconds(),
				"request_id", c.Response().Header().Get(echo.HeaderXRequestID), // never the client's own words
			}
			if key := c.Response().Header().Get(headerKey); key != "" {
				attrs = append(attrs, "key_hash", idempotency.Hash(key),
					"replayed", c.Response().Header().Get(headerReplayed) == "true")
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
