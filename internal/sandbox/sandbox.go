// Package sandbox stands for the services outside payonce: a payment provider that
// speaks enough of Stripe's API for its Go client, and a merchant's webhook
// receiver. Both keep records of their own and fail on demand. The package shares no
// table and no rule with payonce, so its records are independent evidence.
//
// It promises, as Stripe does:
//
//   - An idempotency key leads to one execution. The same key with the same
//     parameters is answered with the saved bytes, a saved 500 included; with
//     other parameters it is refused; while the first request is in flight it is
//     answered 409. The effect, its events and the saved answer are one change.
//   - A result is saved once execution has begun. A request that is refused
//     before (validation, unknown objects, a key in use) is not saved.
//   - Keys are forgotten after 24 hours (forget_keys_after), and are new then.
//   - An intent captures at most once, and refunds never exceed the capture.
//   - Every event is kept and sent, signed, until the receiver answers 2xx.
//
// The records are in memory, and each change of them is a line of a file, if there is one:
// they survive a SIGKILL with it. One sandbox at a time uses a file.
//
// docs/reference/sandbox.md has what it imitates, where it departs from Stripe, and the
// control calls. It does not promise one account: a key sk_test_acct_NAME_… says that it is
// of the account acct_NAME, and every other that it is of acct_sandbox, and all reach the
// same books.
//
// Faults apply to requests to the provider and to the shop, not to control calls and not to
// the events that it sends. A connection is cut before anything was decided
// or after everything was recorded. A drawn 500 happens before the effect or after
// it, half and half, and is saved under the key; a replayed answer does not become
// a 500. A delayed request has its key in flight and is executed even if its client
// has gone. Keys in flight and faults end with the process.
//
// Amounts, in the records too, are in the minor units of Stripe: 5 ISK are 500.
package sandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/payonce/payonce/internal/loop"
)

// bodyLimit bounds the body of any request, in bytes.
const bodyLimit = 64 << 10

// Options shape a sandbox.
type Options struct {
	// Now is the sandbox's clock.
	Now func() time.Time
	// File keeps the records, which last as long as the process where it is "".
	File string
	// Logger receives what the background work logs; nil discards it.
	Logger *slog.Logger
	// WebhookURL receives the provider's events; "" sends none.
	WebhookURL string
	// WebhookSecret signs them. The whole string is the key, as at Stripe.
	WebhookSecret string
	// ShopSecret verifies POST /shop/webhooks (Standard Webhooks, whsec_ and
	// base64); without one the shop answers 503.
	ShopSecret string
	// ProcessingTime is how long pm_card_processing stays processing; 2 s when 0.
	ProcessingTime time.Duration
}

// Sandbox is the provider, the shop and their control calls as one http.Handler.
// Deliver does the background work.
type Sandbox struct {
	options  Options
	shop     *standardwebhooks.Webhook
	client   *http.Client
	faults   faults
	inFlight sync.Map // the idempotency keys of requests in flight
	handler  http.Handler
	wake     chan struct{} // an event was recorded
	draining context.Context

	mu      sync.Mutex // of what follows
	books   *books
	journal *journal

	// Drain ends all present and future delays, so that delayed requests are executed
	// at once when the server shuts down.
	Drain context.CancelFunc
}

// New returns a sandbox with the records of its file. Its errors are sentences
// that name the environment variable to change. Close closes the file.
func New(o Options) (_ *Sandbox, err error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.ProcessingTime <= 0 {
		o.ProcessingTime = 2 * time.Second
	}
	s := &Sandbox{options: o, wake: make(chan struct{}, 1), books: newBooks()}
	s.client = &http.Client{
		Timeout:       sendDeadline,
		Transport:     &http.Transport{MaxIdleConnsPerHost: senders, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	s.draining, s.Drain = context.WithCancel(context.Background())
	s.faults.set(plan{})
	if err := checkWebhook(o.WebhookURL, o.WebhookSecret); err != nil {
		return nil, err
	}
	if o.ShopSecret != "" {
		shop, err := standardwebhooks.NewWebhook(o.ShopSecret)
		if err != nil {
			return nil, errors.New("SHOP_WEBHOOK_SECRET cannot be read: set it to whsec_ and the secret in base64")
		}
		s.shop = shop
	}
	if s.journal, err = openJournal(o.File, s.books.apply); err != nil {
		return nil, err
	}
	s.handler = s.routes()
	return s, nil
}

// Close closes the file. Nothing may be in flight.
func (s *Sandbox) Close() error { return s.journal.close() }

// decide makes one decision at a time. do reads the records and fills the change, which is
// written, and then applied to them. After an error nothing has changed.
func (s *Sandbox) decide(do func(*change) (answer, error)) (a answer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.settle(); err != nil {
		return a, err
	}
	c := &change{}
	if a, err = do(c); err != nil {
		return answer{}, err
	}
	return a, s.record(c)
}

// record writes a change and applies it. The lock is held.
func (s *Sandbox) record(c *change) error {
	if err := s.journal.append(c); err != nil {
		return err
	}
	s.books.apply(c)
	if len(c.Events) > 0 {
		select {
		case s.wake <- struct{}{}:
		default: // Deliver is about to look
		}
	}
	return nil
}

func checkWebhook(target, secret string) error {
	if target == "" {
		return nil
	}
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("STRIPE_WEBHOOK_URL is %q: set it to an http or https address", target)
	}
	if secret == "" {
		return errors.New("STRIPE_WEBHOOK_SECRET is not set: events to STRIPE_WEBHOOK_URL cannot be signed without it")
	}
	return nil
}

func (s *Sandbox) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/account", s.provider(retrieveAccount))
	mux.HandleFunc("POST /v1/payment_intents", s.provider(s.createIntent))
	mux.HandleFunc("GET /v1/payment_intents", s.provider(list("payment_intent", &s.books.intents, filterIntents)))
	mux.HandleFunc("GET /v1/payment_intents/{id}", s.provider(retrieve("payment_intent", "intent", s.books.intents.get)))
	mux.HandleFunc("POST /v1/payment_intents/{id}/confirm", s.provider(s.confirmIntent))
	mux.HandleFunc("POST /v1/payment_intents/{id}/cancel", s.provider(s.cancelIntent))
	mux.HandleFunc("POST /v1/refunds", s.provider(s.createRefund))
	mux.HandleFunc("GET /v1/refunds", s.provider(list("refund", &s.books.refunds, filterRefunds)))
	mux.HandleFunc("GET /v1/refunds/{id}", s.provider(retrieve("refund", "id", s.books.refunds.get)))
	mux.HandleFunc("GET /v1/charges/{id}", s.provider(retrieve("charge", "id", s.books.charge)))
	mux.HandleFunc("GET /v1/disputes", s.provider(list("dispute", &s.books.disputes, filterDisputes)))
	mux.HandleFunc("GET /v1/disputes/{id}", s.provider(retrieve("dispute", "id", s.books.disputes.get)))
	mux.HandleFunc("GET /v1/events", s.provider(list("event", &s.books.events, filterEvents)))
	mux.HandleFunc("GET /v1/events/{id}", s.provider(retrieve("event", "id", s.books.events.get)))
	mux.HandleFunc("/v1/", s.provider(unrecognized))

	mux.HandleFunc("GET /authenticate/{id}", s.showAuthentication)
	mux.HandleFunc("POST /authenticate/{id}", s.authenticate)
	mux.HandleFunc("POST /shop/webhooks", s.control(s.receiveNotification))

	mux.HandleFunc("GET /books", s.control(s.getBooks))
	mux.HandleFunc("PUT /faults", s.control(s.putFaults))
	mux.HandleFunc("DELETE /faults", s.deleteFaults)
	mux.HandleFunc("POST /duplicate-webhooks", s.control(s.duplicateWebhooks))
	mux.HandleFunc("POST /dispute", s.control(s.dispute))
	mux.HandleFunc("POST /refund", s.control(s.refundOutside))
	for _, path := range []string{"GET /healthz", "GET /readyz"} {
		mux.HandleFunc(path, s.control(func(*http.Request) (answer, error) { return object(http.StatusOK, struct{}{}), nil }))
	}
	return mux
}

// ServeHTTP serves the provider (/v1), the shop (/shop/webhooks) and the
// control calls.
func (s *Sandbox) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// delay waits for d, or less when the sandbox drains. It does not end when the
// client goes away.
func (s *Sandbox) delay(d time.Duration) {
	loop.Pause(s.draining, d, nil)
}

// newID returns a random identifier with Stripe's prefix.
func newID(prefix string) string { return prefix + rand.Text() }
