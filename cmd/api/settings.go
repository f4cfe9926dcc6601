package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/program"
)

// settings are the program's environment.
type settings struct {
	// Connection string of payonce's PostgreSQL database. The user acts as the role
	// payonce_api, so it must be a member of it.
	DatabaseURL program.Secret `env:"DATABASE_URL,required,notEmpty"`
	// Address to listen on: the API, its documentation and health checks.
	HTTPAddr string `env:"HTTP_ADDR" envDefault:"127.0.0.1:8080"`
	// How long an idempotency key replays its stored response. Then the key is a tombstone and is
	// refused. More than 0.
	IdempotencyRetention time.Duration `env:"IDEMPOTENCY_RETENTION" envDefault:"168h"`
	// required: a request without the header Idempotency-Key is refused. natural: the key of a
	// charge is derived from its order.
	IdempotencyKeyMode string `env:"IDEMPOTENCY_KEY_MODE" envDefault:"required"`
	// An order has at most one charge that is pending or has succeeded: a further one is refused.
	// false: only those of merchants that are seeded with --one-charge-per-order.
	OneChargePerOrder bool `env:"ONE_CHARGE_PER_ORDER"`
	// on: a text that holds a card number is refused. off: it is stored.
	CardNumberCheck string `env:"CARD_NUMBER_CHECK" envDefault:"on"`
	// Requests per second that one merchant may send to this api, replays and refused ones
	// included. 0: any number.
	RateLimit int `env:"RATE_LIMIT" envDefault:"0"`
	// How many API keys that are not valid one address may send to this api at once. Then it may
	// send ten in a minute, and others get 429. 0: any number.
	AuthenticationFailures int `env:"AUTHENTICATION_FAILURES" envDefault:"20"`
	// Networks of the proxies before this api, separated by commas, such as 10.0.0.0/8. The client
	// is the last address in X-Forwarded-For that is in none of them. Empty: the address of the
	// connection.
	TrustedProxies []netip.Prefix `env:"TRUSTED_PROXIES"`
	// Origins of the web pages that may call the API from a browser, separated by commas. Empty:
	// none.
	CORSOrigins string `env:"CORS_ORIGINS"`
	// Hosts under which browsers may read /docs, separated by commas, without a port. none: it is
	// not served.
	DocsHosts string `env:"DOCS_HOSTS" envDefault:"localhost,127.0.0.1,::1"`
	// Response to a request whose key another request is using at that moment. wait: wait for the
	// other's response, for IN_FLIGHT_WAIT at most, then 409. 409, 425, 202: that status at once.
	InFlight string `env:"IN_FLIGHT" envDefault:"wait"`
	// How long such a request waits. From 1ms to 10s.
	InFlightWait time.Duration `env:"IN_FLIGHT_WAIT" envDefault:"250ms"`
	// Secret by which Stripe signs its webhooks. Two, separated by a comma, while one replaces the
	// other. Empty: webhooks of Stripe are refused.
	StripeWebhookSecret program.Secret `env:"STRIPE_WEBHOOK_SECRET"`

	program.Service
	program.Certificate
}

// Bounds of IN_FLIGHT_WAIT: a request must end before its own time-out.
const (
	shortestWait = time.Millisecond
	longestWait  = 10 * time.Second
)

// inFlightStatus is the status of the response to a key whose first request is in flight,
// by IN_FLIGHT.
var inFlightStatus = map[string]int{
	"wait": http.StatusConflict, "409": http.StatusConflict, "425": http.StatusTooEarly, "202": http.StatusAccepted,
}

// Check refuses settings with which the api cannot work.
func (s settings) Check() error {
	switch {
	case s.IdempotencyRetention <= 0:
		return errors.New("IDEMPOTENCY_RETENTION is not positive: keys would expire before a client could retry")
	case s.IdempotencyKeyMode != "required" && s.IdempotencyKeyMode != "natural":
		return fmt.Errorf("IDEMPOTENCY_KEY_MODE is %q: set it to one of required, natural", s.IdempotencyKeyMode)
	case s.CardNumberCheck != "on" && s.CardNumberCheck != "off":
		return fmt.Errorf("CARD_NUMBER_CHECK is %q: set it to one of on, off", s.CardNumberCheck)
	case s.RateLimit < 0:
		return fmt.Errorf("RATE_LIMIT is %d: set it to the requests that a merchant may send in a second, or to 0 for any number", s.RateLimit)
	case s.AuthenticationFailures < 0:
		return fmt.Errorf("AUTHENTICATION_FAILURES is %d: set it to the wrong API keys that an address may send at once, or to 0 for any number", s.AuthenticationFailures)
	case inFlightStatus[s.InFlight] == 0:
		return fmt.Errorf("IN_FLIGHT is %q: set it to one of wait, 409, 425, 202", s.InFlight)
	case s.InFlightWait < shortestWait || s.InFlightWait > longestWait:
		return fmt.Errorf("IN_FLIGHT_WAIT is %s: set it between %s and %s", s.InFlightWait, shortestWait, longestWait)
	}
	return cmp.Or(s.checkOrigins(), s.Service.Check(), s.Certificate.Check())
}

// wait is how long a request waits for another one with its key.
func (s settings) wait() time.Duration {
	if s.InFlight == "wait" {
		return s.InFlightWait
	}
	return 0
}

// protect sets the server's TLS. Without TLS it warns where others may read API keys.
func (s settings) protect(server *http.Server, log *slog.Logger) (err error) {
	if server.TLSConfig, err = s.TLS(log); s.TLSCertFile == "" && !program.Local(s.HTTPAddr) {
		log.Warn("HTTP_ADDR is reachable over a network without TLS, so API keys can be read on the way: set TLS_CERT_FILE and TLS_KEY_FILE, or let only a proxy reach it")
	}
	return err
}

// docsHosts are the hosts of DOCS_HOSTS, none for "none".
func (s settings) docsHosts() []string {
	if s.DocsHosts == "none" {
		return nil
	}
	return split(strings.ToLower(s.DocsHosts))
}

// split returns the parts of a list with commas, without blanks.
func split(list string) (parts []string) {
	for part := range strings.SplitSeq(list, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// checkOrigins refuses an origin that no browser sends, since it would only look as if it were
// allowed. A browser writes a scheme, a host, a port where it is not the scheme's own, and nothing
// else.
func (s settings) checkOrigins() error {
	for _, origin := range split(s.CORSOrigins) {
		if strings.Contains(origin, "*") {
			return errors.New("CORS_ORIGINS holds a *: name each origin whose pages may use an API key")
		}
		u, err := url.Parse(origin)
		if err != nil || !isOrigin(u, origin) {
			return fmt.Errorf("CORS_ORIGINS holds %q: write an origin as browsers do, such as https://shop.example or https://shop.example:8443", origin)
		}
		if u.Scheme == "http" && !program.Local(u.Hostname()) && !s.AllowPlaintext {
			return fmt.Errorf("CORS_ORIGINS holds %s, whose pages can be changed on the way: use https, or set ALLOW_PLAINTEXT=1 where the network is your own", origin)
		}
	}
	return nil
}

func isOrigin(u *url.URL, written string) bool {
	port, known := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	return known && u.Hostname() != "" && u.Port() != port &&
		!strings.HasSuffix(u.Host, ":") && !strings.ContainsAny(u.Host, " %") &&
		written == u.Scheme+"://"+strings.ToLower(u.Host)
}
