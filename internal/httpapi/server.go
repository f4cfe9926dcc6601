// Package httpapi is payonce over HTTP: routes, authentication, strict reading of
// requests, and problems (RFC 9457) for everything that is refused.
//
// # Guarantees
//
//   - A request is bounded in time and size, and is read strictly or refused before
//     anything is stored.
//   - Each error of the layers below leaves through one table of problems.
//
// It owns no table of the database.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

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

// Config is what an API serves, and to whom.
type Config struct {
	DB     Database
	Intake *intake.Intake
	// InFlight is the status that answers a key whose first request is still being
	// committed: 409, 425 or 202.
	InFlight int
	// NaturalKeys derives the idempotency key of a request from what the request is about.
	NaturalKeys bool
	// StripeSecrets sign the provider's events: one, or two while it is replaced. Without
	// any, every event is refused.
	StripeSecrets []string
	Limits        Limits
	// Ready reports why the program cannot serve, "" if it can. It is called for any caller,
	// at any rate.
	Ready func(context.Context) (why string, err error)
	// Origins are the origins of web pages that may call from a browser.
	Origins []string
	// Now is the clock for rates and for the age of signatures and of what was read.
	Now func() time.Time
	Log *slog.Logger
	// Observer counts and traces requests.
	Observer Observer
	// Carry returns what the messages that a request causes carry of its context; optional.
	Carry func(context.Context) map[string]string
	// Metrics serves GET /metrics; optional.
	Metrics http.Handler
}

func (c Config) check() error {
	if c.DB == nil || c.Intake == nil || c.Ready == nil || c.Now == nil || c.Log == nil {
		return errors.New("DB, Intake, Ready, Now and Log must be set")
	}
	if !slices.Contains([]int{http.StatusConflict, http.StatusTooEarly, http.StatusAccepted}, c.InFlight) {
		return fmt.Errorf("InFlight is %d: it must be 409, 425 or 202", c.InFlight)
	}
	if l := c.Limits; min(l.PerSecond, l.InFlight, l.PerMerchant, l.Authenticating, l.Auditing) < 0 {
		return fmt.Errorf("a limit is negative: %+v", l)
	}
	return nil
}

// API serves the routes of payonce.
type API struct {
	Config

	limits        *limits
	recent        *lru.Cache[[32]byte, string]          // merchants of API keys that were valid lately, by hash
	sessions      *postgres.Reads[credentials, session] // of requests without an idempotency key
	keyedSessions *postgres.Reads[credentials, session] // of requests with one: a lock on keys delays no others
	assets        map[string]asset                      // by path
}

// New makes an API.
func New(c Config) (*API, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("configure the HTTP API: %w", err)
	}
	if c.Carry == nil {
		c.Carry = func(context.Context) map[string]string { return nil }
	}
	recent, err := lru.New[[32]byte, string](recentKeys)
	if err != nil {
		return nil, fmt.Errorf("remember API keys: %w", err)
	}
	assets, err := newAssets()
	if err != nil {
		return nil, err
	}
	return &API{
		Config: c, limits: newLimits(c.Limits), recent: recent, assets: assets,
		sessions:      newSessions(c.DB, c.Limits.Authenticating),
		keyedSessions: newSessions(c.DB, (c.Limits.Authenticating+1)/2),
	}, nil
}

// Server is an HTTP server for the API with every time-out set. It is not started.
func (a *API) Server() *http.Server {
	return &http.Server{
		Handler:           a.Handler(),
		MaxHeaderBytes:    maxHeaders,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          slog.NewLogLogger(a.Log.Handler(), slog.LevelDebug),
		// OPTIONS * is answered like every path that is not served, by a problem.
		DisableGeneralOptionsHandler: true,
	}
}

// Routes whose requests have an idempotency key.
const (
	chargesPath = "/v1/charges"
	cancelPath  = "/v1/charges/:id/cancel"
	refundsPath = "/v1/charges/:id/refunds"
)

// Handler routes requests.
func (a *API) Handler() http.Handler {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = a.problem
	e.Use(
		a.trace,
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
	for _, path := range []string{"/openapi.yaml", "/docs", "/docs/:file"} {
		read(e, path, a.getAsset, gzipped())
	}
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

// healthz reports that the process lives.
func (a *API) healthz(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"status": "ok"})
}

// getMetrics is GET /metrics, for Prometheus.
func (a *API) getMetrics(c echo.Context) error {
	if a.Metrics == nil {
		return echo.ErrNotFound
	}
	a.Metrics.ServeHTTP(c.Response(), c.Request())
	return nil
}

// readyz reports that requests can be served: the database answers and has every migration
// that this program needs.
func (a *API) readyz(c echo.Context) error {
	why, err := a.Ready(c.Request().Context())
	if err != nil {
		return err
	}
	if why != "" {
		return errUnavailable.because(why)
	}
	return c.JSON(http.StatusOK, map[string]string{"status": "ready"})
}
