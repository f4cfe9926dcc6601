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
//
// Echo routes, and no library answers as this contract wants. It is no part of cmd/api, so its tests start no
// process.
package httpapi

import (
	"context"
	_ "embed"
	"log/slog"
	"net/http"
	"net/netip"
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
	maxBody       = "64KiB"
	maxEvent      = "1MiB"          // of an event of the provider: the evidence of a dispute may be long
	maxEvents     = 32              // that are read at once, a quarter of them from one address
	maxHeaders    = 16 << 10        // bytes
	unsignedTime  = 3 * time.Second // to read the body of an event of the provider, whose sender is not known yet
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 60 * time.Second
)

var requestTimeout = 20 * time.Second

// Config is what an API serves, and to whom.
type Config struct {
	// DB is never committed to but as a tenant's. A read outside a tenant concerns no merchant, or calls a function
	// that is made for it.
	DB     *postgres.DB
	Intake *intake.Intake
	// InFlight is the status that answers a key whose first request is still being
	// committed: 409, 425 or 202.
	InFlight int
	// OneChargePerOrder refuses, for every merchant, a charge for an order that has one which
	// is pending or has succeeded.
	OneChargePerOrder bool
	// StripeSecrets sign the provider's events: one, or two while it is replaced. Without
	// any, every event is refused.
	StripeSecrets []string
	Limits        Limits
	// Health serves /healthz, /readyz and /metrics, for any caller at any rate.
	Health http.Handler
	// TrustedProxies are networks whose X-Forwarded-For says where a client is. Without any it
	// is where its connection comes from.
	TrustedProxies []netip.Prefix
	// KeepsCardNumbers ends the search for card numbers in the texts of a request.
	KeepsCardNumbers bool
	// Now is the clock for rates and for the age of signatures and of what was read.
	Now func() time.Time
	Log *slog.Logger
	// Observe is middleware around each request; optional. The request is handled in the
	// context that it sets. AnswerOf returns what was answered.
	Observe echo.MiddlewareFunc
	// Carry returns what the messages that a request causes carry of its context.
	Carry func(context.Context) map[string]string
}

// API serves the routes of payonce.
type API struct {
	Config

	limits *limits
	recent *lru.Cache[[32]byte, string] // the merchants of API keys that were valid lately, by hash

	// Reads of the merchants of API keys: of keys that were valid lately, and of others.
	readRecent, readOther func(ctx context.Context, apiKey string) (merchants.Merchant, error)

	closing  context.Context //nolint:containedctx // ends when a server shuts down, and with it every wait
	shutDown context.CancelFunc
}

// New makes an API.
func New(c Config) *API {
	if c.Observe == nil {
		c.Observe = func(next echo.HandlerFunc) echo.HandlerFunc { return next }
	}
	recent, _ := lru.New[[32]byte, string](remembered) // it refuses a size below one alone
	closing, shutDown := context.WithCancel(context.Background())
	return &API{
		Config: c, limits: newLimits(c.Limits), recent: recent,
		readRecent: merchants.NewAuthenticate(c.DB, c.Limits.Authenticating),
		readOther:  merchants.NewAuthenticate(c.DB, c.Limits.Authenticating),
		closing:    closing, shutDown: shutDown,
	}
}

// Server is an HTTP server for the API with every time-out set. It is not started. Its shutdown
// ends the waits of requests.
func (a *API) Server() *http.Server {
	s := &http.Server{
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
	s.RegisterOnShutdown(a.shutDown)
	return s
}

// Routes whose requests have an idempotency key.
const (
	chargesPath = "/v1/charges"
	cancelPath  = "/v1/charges/:id/cancel"
	refundsPath = "/v1/charges/:id/refunds"
)

var keyedPaths = []string{chargesPath, cancelPath, refundsPath}

// Handler routes requests.
func (a *API) Handler() http.Handler {
	e := echo.New()
	e.HTTPErrorHandler = a.problem
	e.IPExtractor = clientBehind(a.TrustedProxies)
	e.Use(
		begin,
		a.Observe,
		a.accessLog(),
		middleware.RecoverWithConfig(middleware.RecoverConfig{LogErrorFunc: a.panicked}),
		middleware.ContextTimeout(requestTimeout),
		middleware.BodyLimitWithConfig(middleware.BodyLimitConfig{Skipper: isEvent, Limit: maxBody}),
		middleware.BodyLimit(maxEvent),
		a.authenticate, // and the rate
		a.limitWork,
	)
	// scope is what the API key must have, "" where none is asked for.
	get := func(path string, scope merchants.Scope, handle echo.HandlerFunc) {
		e.Match([]string{http.MethodGet, http.MethodHead}, path, handle, needs(scope))
	}
	post := func(path string, scope merchants.Scope, handle echo.HandlerFunc) { e.POST(path, handle, needs(scope)) }
	get("/healthz", "", echo.WrapHandler(a.Health))
	get("/readyz", "", echo.WrapHandler(a.Health))
	get("/metrics", "", echo.WrapHandler(a.Health))
	get(contractPath, "", getContract)
	post(chargesPath, merchants.ChargesWrite, keyed(a, a.validate, a.createCharge))
	get(chargesPath, merchants.ChargesRead, a.answer(a.listCharges))
	get("/v1/charges/:id", merchants.ChargesRead, a.ofCharge(a.getCharge))
	get("/v1/charges/:id/events", merchants.ChargesRead, a.ofCharge(getEvents))
	post(cancelPath, merchants.ChargesWrite, keyed(a, nil, a.cancelCharge))
	post(refundsPath, merchants.RefundsWrite, keyed(a, a.validateRefund, a.Intake.RequestRefund))
	get(refundsPath, merchants.ChargesRead, a.ofCharge(getRefunds))
	get("/v1/charges/:id/refunds/:refund", merchants.ChargesRead, a.ofCharge(getRefund))
	get("/v1/events", merchants.ChargesRead, a.answer(a.followEvents))
	get("/v1/idempotency-keys/:key", merchants.ChargesRead, a.answer(a.getKey))
	post("/v1/idempotency-keys/:key/abandon", merchants.ChargesWrite, a.answer(a.abandonKey))
	get("/v1/balances", merchants.ChargesRead, a.answer(a.getBalances))
	post(stripePath, "", a.answer(a.receiveStripe))
	return e
}

// contract is the API as callers may rely on it. Tests compare every answer with it.
//
//go:embed openapi.yaml
var contract []byte

const contractPath = "/openapi.yaml"

// getContract is GET /openapi.yaml.
func getContract(c echo.Context) error {
	return c.Blob(http.StatusOK, "application/yaml", contract)
}
