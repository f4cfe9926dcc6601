// Package stripe is the client of a Stripe-compatible payment provider: the few
// calls that a charge and its refunds need. It is a thin layer over stripe-go that
// says what an answer means.
//
// It promises:
//
//   - One call sends one request. stripe-go's own retries are off, net/http is
//     kept from repeating a request on a reused connection, and redirects are
//     not followed. (CancelIntent may follow its request by a retrieve.)
//   - Every error is an [Error] of one [Kind], or the error of the caller's context.
//     Declined and Rejected are certain; everything else leaves the outcome
//     open. The returned value beside an error is the zero value.
//   - An answer counts only if it is the provider's own: a status of 2xx and
//     the object that was asked for, or an error in the provider's form.
//     Whatever a proxy, a captive portal or a cut connection leaves is
//     Unavailable.
//   - No error text holds a secret key, a client secret or a body that was not
//     understood.
//
// It does not promise that a call takes effect once. The caller repeats a call
// whose outcome is open under the same idempotency key, and retrieves the payment
// intent first.
//
// Amounts are in minor units of ISO 4217 on our side and of Stripe on the wire: see
// stripeUnits. Currencies are upper case on our side and lower case on the wire.
// The package owns no table and sets no variable of stripe-go.
//
// stripe-go is its library: it sends, and does not say what an answer proves. The worker, the audit and the
// command line share it.
package stripe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	stripego "github.com/stripe/stripe-go/v85"
)

const (
	defaultTimeout = 10 * time.Second
	maxName        = 255 // bytes of an idempotency key
)

// Config names the provider and the account.
type Config struct {
	// SecretKey is the account's secret or restricted key.
	SecretKey string
	// Base is the provider's origin, without /v1. Empty means Stripe itself.
	Base string
	// Account is the id of the key's account, for a restricted key that may not read it. Empty: the
	// provider is asked.
	Account string
	// Timeout bounds one request from dialing to the last byte of the
	// answer. 0 means 10 seconds.
	Timeout time.Duration
	// Limits bound the requests. The circuit breaker is always on.
	Limits Limits
	// Observe, if set, is called with the caller's context and the name of each
	// request (one of [Calls]) before it is sent; answered with what came back.
	Observe func(ctx context.Context, call string) (answered func(Answered))
}

// Client calls the provider. It is safe for concurrent use.
type Client struct {
	api       *stripego.Client
	transport *http.Transport
	account   Account // its ID is empty where the provider is to be asked
	limiter   *limiter
	blocked   atomic.Value // a string, see Blocked
}

// New returns a client, or a sentence that names the unusable setting. It sends
// nothing. A proxy set in the environment is used. Close releases the connections.
func New(cfg Config) (*Client, error) {
	if checkNames(cfg.SecretKey) != nil {
		return nil, errors.New("the provider's secret key is empty or holds a space or another invisible character: set STRIPE_SECRET_KEY to the account's secret or restricted key")
	}
	base, err := origin(cfg.Base, cfg.SecretKey)
	if err != nil {
		return nil, err
	}
	if cfg.Account != "" && (!strings.HasPrefix(cfg.Account, "acct_") || checkNames(cfg.Account) != nil) {
		return nil, errors.New("STRIPE_ACCOUNT is no id of an account: set it as Stripe's dashboard shows it, acct_ and letters or digits")
	}
	if base == stripego.APIURL {
		cfg.Limits.PerSecond = cmp.Or(cfg.Limits.PerSecond, perSecondAtStripe[isLive(cfg.SecretKey)])
	}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		Protocols:           new(http.Protocols),
		MaxIdleConnsPerHost: maxIdleConns,
		IdleConnTimeout:     idleConnTimeout,
	}
	transport.Protocols.SetHTTP1(true) // alone: a connection that stalls or dies takes a single call with it
	backend := stripego.GetBackendWithConfig(stripego.APIBackend, &stripego.BackendConfig{
		URL:               stripego.String(base),
		MaxNetworkRetries: stripego.Int64(0),
		EnableTelemetry:   new(false),
		LeveledLogger:     &stripego.LeveledLogger{Level: stripego.LevelNull},
		HTTPClient: &http.Client{
			Transport:     onceTransport{transport, cfg.Observe},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Timeout:       cmp.Or(cfg.Timeout, defaultTimeout),
		},
	})
	return &Client{
		api:       stripego.NewClient(cfg.SecretKey, stripego.WithBackends(&stripego.Backends{API: backend})),
		transport: transport,
		account:   Account{ID: cfg.Account, Live: isLive(cfg.SecretKey)},
		limiter:   newLimiter(cfg.Limits),
	}, nil
}

// Blocked returns why an operator must mend the secret key, as the last answer said; "" after
// an answer that accepted it.
func (c *Client) Blocked() string {
	why, _ := c.blocked.Load().(string)
	return why
}

// Account is an account of the provider in one of its modes, which share nothing.
type Account struct {
	ID   string // "none" at a server that has no accounts
	Live bool
}

// Account is Config.Account, or retrieves the account of the secret key. The mode is the key's
// own: no answer names it.
func (c *Client) Account(ctx context.Context) (a Account, err error) {
	if c.account.ID != "" {
		return c.account, nil
	}
	defer wrap(&err, "retrieve", "the account of STRIPE_SECRET_KEY")
	a, err = ask(ctx, c, func(ctx context.Context) (*stripego.Account, error) {
		return c.api.V1Accounts.Retrieve(ctx, nil)
	}, func(sent *stripego.Account) (Account, error) {
		return Account{ID: sent.ID, Live: c.account.Live}, checkObject(sent.Object, "account", sent.ID)
	})
	if e, ok := errors.AsType[*Error](err); ok && e.Kind == Rejected && e.StatusCode == http.StatusNotFound {
		return Account{ID: "none", Live: c.account.Live}, nil
	}
	return a, err
}

// isLive reports whether a secret or restricted key is one of live mode.
func isLive(key string) bool { return strings.Contains(key, "_live_") }

// Close closes idle connections. Calls in flight continue.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// origin checks and normalises the provider's address. Plain HTTP is accepted
// for test keys only: a live key is a password.
func origin(base, key string) (string, error) {
	if base == "" {
		return stripego.APIURL, nil
	}
	u, err := url.Parse(base)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.User != nil,
		u.Path != "" && u.Path != "/", u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		return "", errors.New("the provider's address is not an origin: set STRIPE_API_BASE to one such as https://api.stripe.com, without a user, a path or a query")
	case u.Scheme == "http" && isLive(key):
		return "", errors.New("the provider's address is plain http and the secret key is a live one: set STRIPE_API_BASE to an https:// origin")
	}
	return u.Scheme + "://" + u.Host, nil
}

// ask runs one call of stripe-go and classifies what came back. The error
// decides: stripe-go returns an empty object beside it, never nil.
func ask[S, T any](ctx context.Context, c *Client, send func(context.Context) (S, error), read func(S) (T, error)) (v T, err error) {
	if err := ctx.Err(); err != nil {
		return v, err
	}
	leave, err := c.limiter.enter(ctx)
	if err != nil {
		return v, err
	}
	var a Answered
	defer func() {
		leave(a.Status)
		if cause := recover(); cause != nil { // stripe-go does where a list holds null
			if a.Status == 0 { // nothing was answered, so it is not the answer's fault
				panic(cause)
			}
			err = unavailable(fmt.Errorf("stripe-go panics: %v", cause))
		}
	}()
	sent, err := send(context.WithValue(ctx, answerKey{}, &a))
	if err != nil {
		err = classify(ctx, a, err)
		if e, ok := errors.AsType[*Error](err); ok && e.Kind == Blocked {
			c.blocked.Store(err.Error())
		}
		return v, err
	}
	c.blocked.Store("")
	if a.Status/100 != 2 { // stripe-go takes everything below 400 for a success
		return v, unavailable(fmt.Errorf("answered %d, which the provider's API never does", a.Status))
	}
	if v, err = read(sent); err != nil {
		return *new(T), unavailable(err)
	}
	return v, nil
}

// wrap prefixes an error with the call that returned it.
func wrap(err *error, call, id string) {
	if *err != nil {
		*err = fmt.Errorf("%s %s: %w", call, id, *err)
	}
}

// given is a parameter that is not sent if it is "".
func given(parameter string) *string {
	if parameter == "" {
		return nil
	}
	return &parameter
}

// checkNames refuses an idempotency key that stripe-go would replace by a random one (empty) or
// alter (spaces), or the provider refuse (long), and an id that leads to another path than its own: an
// empty one turns a retrieve into a list. stripe-go escapes what an id holds, but dots.
func checkNames(names ...string) error {
	invisible := func(r rune) bool { return r < '!' || r > '~' }
	for _, name := range names {
		if strings.Trim(name, ".") == "" || len(name) > maxName || strings.ContainsFunc(name, invisible) {
			return &Error{Kind: Rejected, Why: Decline{Message: "a key or an id is not made of 1 to 255 visible ASCII characters"}}
		}
	}
	return nil
}

// checkObject refuses an answer that is not the object that was asked for: stripe-go parses every
// JSON object into it.
func checkObject(object, want, id string) error {
	if object != want || checkNames(id) != nil {
		return fmt.Errorf("the answer holds no %s", want)
	}
	return nil
}

const (
	// A page of a hundred intents is well under a megabyte.
	maxAnswerBytes = 8 << 20
	// One idle connection for every call that may be in flight.
	maxIdleConns = 512
	// Below the idle time-out of the usual load balancers, since a request
	// that meets a closed connection is not repeated here.
	idleConnTimeout = 30 * time.Second
	// A longer wait would be a mistake of the provider's.
	maxRetryAfter = 10 * time.Minute
)

// onceTransport sends a request at most once. net/http repeats a POST that
// carries an Idempotency-Key when a reused connection dies without an answer,
// provided that it can read the body again: without GetBody it cannot.
type onceTransport struct {
	next    http.RoundTripper
	observe func(ctx context.Context, call string) (answered func(Answered))
}

func (t onceTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	once := r.WithContext(r.Context())
	once.GetBody = nil
	a, _ := r.Context().Value(answerKey{}).(*Answered)
	answered := func(Answered) {}
	if t.observe != nil {
		answered = t.observe(r.Context(), callName(r))
	}
	res, err := t.next.RoundTrip(once)
	if err == nil {
		*a = Answered{Status: res.StatusCode, Replayed: res.Header.Get("Idempotent-Replayed") == "true"}
		res.Body = http.MaxBytesReader(nil, res.Body, maxAnswerBytes)
	}
	answered(*a)
	return res, err
}

// answerKey is the key under which a request's context holds its *Answered.
type answerKey struct{}

// Answered is what came back for a request, once its headers have arrived.
type Answered struct {
	Status   int  // 0: no answer came
	Replayed bool // the provider had answered this idempotency key before
}

// retryAfter is how many seconds an answer asks to wait: at most maxRetryAfter, 0 if it does not say.
func retryAfter(h http.Header) time.Duration {
	seconds, _ := strconv.ParseUint(h.Get("Retry-After"), 10, 64) // 0 of no number, the most of one that is too large
	return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
}

// Calls are the names of the requests that a client sends.
func Calls() []string {
	return []string{
		"GET account", "GET payment_intents", "POST payment_intents", "GET payment_intents/id",
		"POST payment_intents/id/confirm", "POST payment_intents/id/cancel",
		"GET refunds", "POST refunds", "GET disputes",
	}
}

// callName is the request's name: the method and the path, with id in place of
// ids.
func callName(r *http.Request) string {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	if len(parts) > 1 {
		parts[1] = "id"
	}
	return r.Method + " " + strings.Join(parts, "/")
}
