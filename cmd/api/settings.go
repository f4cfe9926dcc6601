package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/program"
)

// settings are the program's environment.
type settings struct {
	DatabaseURL          program.Secret `env:"DATABASE_URL,required,notEmpty"`
	HTTPAddr             string         `env:"HTTP_ADDR" envDefault:"127.0.0.1:8080"`
	AllowPlaintext       bool           `env:"ALLOW_PLAINTEXT"`
	IdempotencyRetention time.Duration  `env:"IDEMPOTENCY_RETENTION" envDefault:"168h"`
	IdempotencyKeyMode   string         `env:"IDEMPOTENCY_KEY_MODE" envDefault:"required" oneof:"required|natural"`
	RateLimit            int            `env:"RATE_LIMIT" envDefault:"0"` // per merchant and second
	CORSOrigins          string         `env:"CORS_ORIGINS"`
	InFlight             string         `env:"IN_FLIGHT" envDefault:"wait" oneof:"wait|409|425|202"`
	InFlightWait         time.Duration  `env:"IN_FLIGHT_WAIT" envDefault:"250ms"`
	RedisURL             program.Secret `env:"REDIS_URL"`
	StripeWebhookSecret  program.Secret `env:"STRIPE_WEBHOOK_SECRET"`
}

// Bounds of IN_FLIGHT_WAIT: a request must end before its own time-out.
const (
	shortestWait = time.Millisecond
	longestWait  = 10 * time.Second
)

// load reads the settings, refuses those with which the api cannot work, and logs them.
func load(log *slog.Logger, environ map[string]string) (s settings, origins []string, err error) {
	if s, err = program.Load[settings](environ); err != nil {
		return s, nil, err
	}
	if err = s.check(); err != nil {
		return s, nil, err
	}
	if origins, err = s.origins(); err == nil {
		program.LogSettings(log, s)
	}
	return s, origins, err
}

func (s settings) check() error {
	if s.IdempotencyRetention <= 0 {
		return errors.New("IDEMPOTENCY_RETENTION is not positive: keys would expire before a client could retry")
	}
	if s.RateLimit < 0 {
		return fmt.Errorf("RATE_LIMIT is %d: set it to the requests that a merchant may send in a second, or to 0 for any number", s.RateLimit)
	}
	if s.InFlightWait < shortestWait || s.InFlightWait > longestWait {
		return fmt.Errorf("IN_FLIGHT_WAIT is %s: set it between %s and %s", s.InFlightWait, shortestWait, longestWait)
	}
	return nil
}

// limits are those of one process.
func (s settings) limits() httpapi.Limits {
	return httpapi.Limits{
		PerSecond: s.RateLimit, InFlight: inFlight, PerMerchant: perMerchant, Authenticating: authenticating,
		Auditing: auditing,
	}
}

// keyInFlight is the status of the answer to a key whose first request is in flight, and how
// long that request is waited for before.
func (s settings) keyInFlight() (status int, wait time.Duration) {
	switch s.InFlight {
	case "409":
		return http.StatusConflict, 0
	case "425":
		return http.StatusTooEarly, 0
	case "202":
		return http.StatusAccepted, 0
	default:
		return http.StatusConflict, s.InFlightWait
	}
}

// secrets are those by which the provider signs its events. While one replaces
// another there are two, with a comma between them.
func (s settings) secrets() []string {
	var secrets []string
	for secret := range strings.SplitSeq(s.StripeWebhookSecret.Reveal(), ",") {
		if secret = strings.TrimSpace(secret); secret != "" {
			secrets = append(secrets, secret)
		}
	}
	return secrets
}

// origins are those of the web pages that may call the API from a browser, each as a browser
// writes it: a scheme, a host, a port where it is not the scheme's own, and nothing else. An
// origin that no browser sends is refused: it would only look as if it were allowed.
func (s settings) origins() ([]string, error) {
	var origins []string
	for origin := range strings.SplitSeq(s.CORSOrigins, ",") {
		origin = strings.TrimSpace(origin)
		if origin == "" {
			continue
		}
		if strings.Contains(origin, "*") {
			return nil, errors.New("CORS_ORIGINS holds a *: name each origin whose pages may use an API key")
		}
		u, err := url.Parse(origin)
		if err != nil || !isOrigin(u, origin) {
			return nil, fmt.Errorf("CORS_ORIGINS holds %q: write an origin as browsers do, such as https://shop.example or https://shop.example:8443", origin)
		}
		if u.Scheme == "http" && !isLoopback(u.Hostname()) && !s.AllowPlaintext {
			return nil, fmt.Errorf("CORS_ORIGINS holds %s, whose pages can be changed on the way: use https, or set ALLOW_PLAINTEXT=1 where the network is your own", origin)
		}
		origins = append(origins, origin)
	}
	return origins, nil
}

func isOrigin(u *url.URL, written string) bool {
	port, known := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	return known && u.Hostname() != "" && u.Port() != port &&
		!strings.HasSuffix(u.Host, ":") && !strings.ContainsAny(u.Host, " %") &&
		written == u.Scheme+"://"+strings.ToLower(u.Host)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
