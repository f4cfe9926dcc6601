package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/payonce/payonce/internal/program"
)

// settings are the program's environment.
type settings struct {
	// Connection string of payonce's database. Its user must be a member of the role payonce_api.
	DatabaseURL program.Secret `env:"DATABASE_URL,required,notEmpty"`
	// Address to listen on, without TLS: from a network only a proxy that ends TLS may reach it.
	HTTPAddr string `env:"HTTP_ADDR" envDefault:"127.0.0.1:8080"`
	// How long an idempotency key replays its stored response before it is a tombstone.
	IdempotencyRetention time.Duration `env:"IDEMPOTENCY_RETENTION" envDefault:"168h"`
	// An order has at most one charge that is pending or has succeeded. false: only those of merchants
	// that are seeded with --one-charge-per-order.
	OneChargePerOrder bool `env:"ONE_CHARGE_PER_ORDER"`
	// on: a text that holds a card number is refused. off: it is stored.
	CardNumberCheck string `env:"CARD_NUMBER_CHECK" envDefault:"on"`
	// Requests per second of one merchant to this api, replays and refused ones included. 0: any
	// number.
	RateLimit int `env:"RATE_LIMIT" envDefault:"0"`
	// API keys that are not valid that one address may send to this api at once; then ten in a minute.
	// 0: any number.
	AuthenticationFailures int `env:"AUTHENTICATION_FAILURES" envDefault:"20"`
	// Networks of the proxies before this api. The client is the last address in X-Forwarded-For that
	// is in none of them. Empty: the address of the connection.
	TrustedProxies []netip.Prefix `env:"TRUSTED_PROXIES"`
	// Response to a request whose key is in use. wait: the other's response, or 409 after
	// IN_FLIGHT_WAIT. 409, 425, 202: that status at once.
	InFlight string `env:"IN_FLIGHT" envDefault:"wait"`
	// How long such a request waits. From 1ms to 10s.
	InFlightWait time.Duration `env:"IN_FLIGHT_WAIT" envDefault:"250ms"`
	// Secret by which Stripe signs its webhooks; two while one replaces the other. Empty: webhooks of
	// Stripe are refused.
	StripeWebhookSecret program.Secret `env:"STRIPE_WEBHOOK_SECRET"`

	program.Service
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
	return s.Service.Check()
}

// wait is how long a request waits for another one with its key.
func (s settings) wait() time.Duration {
	if s.InFlight == "wait" {
		return s.InFlightWait
	}
	return -1
}
