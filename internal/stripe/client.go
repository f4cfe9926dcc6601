// Package stripe is the provider client: a Stripe-compatible payment provider
// seen through the few calls that a charge and its refunds need. It is a thin
// layer over stripe-go that says what an answer means.
//
// It promises:
//
//   - One call sends one request. stripe-go's own retries are off, net/http is
//     kept from repeating a request on a reused connection, and redirects are
//     not followed. (CancelIntent may follow its request by a retrieve.)
//   - Every error is exactly one of [DeclinedError], [RejectedError],
//     [FailedError] and [UnavailableError], or the error of the caller's
//     context. The first two are certain; the other three leave the outcome
//     open.
//   - An answer counts only if it is the provider's own: a status of 2xx and
//     the object that was asked for, or an error in the provider's form.
//     Whatever a proxy, a captive portal or a cut connection leaves is
//     [UnavailableError].
//   - On an error the returned value is the zero value.
//   - No error text holds a secret key, a client secret or a body that was not
//     understood.
//
// It does not promise that a call takes effect once. That is the caller's
// part: it repeats a call whose outcome is open under the same idempotency key,
// and asks for the payment intent first. The parameters of a call belong to its
// key. A release that sends other parameters under a key in use is answered 400
// by the provider; that is reported as [UnavailableError] until the provider
// forgets the key, because an earlier request under that key may have had its
// effect or may be about to.
//
// Amounts are in minor units of ISO 4217 on our side and of Stripe on the wire: see
// stripeDigits. Currencies are upper case on our side and lower case on the wire. The package holds no state but connections, owns no table
// and sets no variable of stripe-go.
package stripe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	stripego "github.com/stripe/stripe-go/v85"
)

const (
	defaultTimeout = 10 * time.Second
	maxKeyLength   = 255
)

// Config says which provider to speak to, and as whom.
type Config struct {
	// SecretKey is the account's secret or restricted key.
	SecretKey string
	// Base is the provider's origin, without /v1. Empty means Stripe itself.
	Base string
	// Timeout bounds one request from dialing to the last byte of the
	// answer. 0 means 10 seconds.
	Timeout time.Duration
	// Observe, where set, is called with the caller's context and the name of each
	// request before it is sent, and what it returns with what came back: see
	// Answered. It must return at once.
	Observe func(ctx context.Context, call string) (answered func(Answered))
}

// Client calls the provider. It is safe for concurrent use.
type Client struct {
	api       *stripego.Client
	transport *http.Transport
	timeout   time.Duration
}

// New returns a client, or a sentence that says which setting is unusable and
// how to mend it. It sends nothing.
//
// A proxy set in the environment is used. Close releases the connections.
func New(cfg Config) (*Client, error) {
	if err := checkSecretKey(cfg.SecretKey); err != nil {
		return nil, err
	}
	base, err := origin(cfg.Base, cfg.SecretKey)
	if err != nil {
		return nil, err
	}
	timeout := cfg.Timeout
	if timeout < 0 {
		return nil, fmt.Errorf("the provider's time-out is %s: it must be positive, or 0 for %s", timeout, defaultTimeout)
	}
	if timeout == 0 {
		timeout = defaultTimeout
	}

	transport := newTransport()
	backend := stripego.GetBackendWithConfig(stripego.APIBackend, &stripego.BackendConfig{
		URL:               stripego.String(base),
		MaxNetworkRetries: stripego.Int64(0),
		EnableTelemetry:   new(false),
		LeveledLogger:     &stripego.LeveledLogger{Level: stripego.LevelNull},
		HTTPClient: &http.Client{
			Transport:     onceTransport{transport, cfg.Observe},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Timeout:       timeout,
		},
	})
	return &Client{
		api:       stripego.NewClient(cfg.SecretKey, stripego.WithBackends(&stripego.Backends{API: backend})),
		transport: transport,
		timeout:   timeout,
	}, nil
}

// Close closes idle connections. Calls under way are not disturbed.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

func checkSecretKey(key string) error {
	if key == "" {
		return errors.New("the provider's secret key is empty: set STRIPE_SECRET_KEY to the account's secret or restricted key")
	}
	if !visible(key) {
		return errors.New("the provider's secret key holds a space or a character that is not printable ASCII: set STRIPE_SECRET_KEY to the key alone")
	}
	return nil
}

// origin checks and normalises the provider's address. Plain HTTP is accepted
// for test keys only: a live key is a password.
func origin(base, key string) (string, error) {
	if base == "" {
		return stripego.APIURL, nil
	}
	const want = "set STRIPE_API_BASE to an origin such as https://api.stripe.com, without a path"
	u, err := url.Parse(base)
	switch {
	case err != nil:
		return "", errors.New("the provider's address is not a URL: " + want)
	case u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("the provider's address begins with neither http:// nor https://: " + want)
	case u.Hostname() == "":
		return "", errors.New("the provider's address names no host: " + want)
	case u.User != nil:
		return "", errors.New("the provider's address holds a user or a password: " + want)
	case u.Path != "" && u.Path != "/", u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		return "", errors.New("the provider's address is more than an origin: " + want)
	case u.Scheme == "http" && strings.Contains(key, "_live_"):
		return "", errors.New("the provider's address is plain http and the secret key is a live one: set STRIPE_API_BASE to an https:// origin")
	}
	return u.Scheme + "://" + u.Host, nil
}

// request runs one call of stripe-go and judges what came back. The error
// decides: stripe-go returns an empty object beside it, never nil.
func request[S, T any](ctx context.Context, c *Client, send func(context.Context) (S, error), read func(S) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	var a answer
	sent, err := send(observe(ctx, &a))
	if err != nil {
		return none, c.judge(ctx, &a, err)
	}
	if a.status/100 != 2 {
		// stripe-go takes everything below 400 for a success.
		return none, a.unavailable(fmt.Errorf("answered %d, which the provider's API never does", a.status))
	}
	v, err := read(sent)
	if err != nil {
		return none, a.unavailable(err)
	}
	return v, nil
}

// checkKey refuses keys that stripe-go would replace by a random one (empty) or
// alter (spaces), and those that cannot be sent.
func checkKey(key string) error {
	if key == "" || len(key) > maxKeyLength || !visible(key) {
		return unsent(fmt.Sprintf("an idempotency key is 1 to %d visible ASCII characters", maxKeyLength))
	}
	return nil
}

// checkID keeps a call from reaching another path than its own: an empty id
// would turn a retrieve into a list.
func checkID(id string) error {
	odd := func(r rune) bool {
		return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}
	if id == "" || strings.IndexFunc(id, odd) >= 0 {
		return unsent("an id is made of letters, digits, _ and -")
	}
	return nil
}

func visible(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < '!' || r > '~' }) < 0
}
