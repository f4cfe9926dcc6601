// Package sandbox stands for the services outside payonce: a payment provider that speaks enough of Stripe's API
// for its clients, and a merchant's webhook receiver. It shares no table and no rule with payonce, so its records
// are independent evidence.
//
// It promises, as Stripe does:
//
//   - An idempotency key leads to one execution. The same key with the same parameters is answered with the saved
//     bytes, a saved 500 included; with other parameters it is refused; in flight it is answered 409. The effect,
//     its events and the saved answer are one change. A request that is refused before execution is not saved.
//   - Keys are forgotten after 24 hours (forget_keys_after), and are new then.
//   - An intent captures at most once, and refunds never exceed the capture.
//   - Every event is kept and sent, signed, until the receiver answers 2xx.
//
// The records are in memory, and each change of them is a line of a file, if there is one: they survive a
// SIGKILL with it. docs/reference/sandbox.md has what it imitates, where it departs from Stripe, its faults and
// its control calls. Amounts, in the records too, are in the minor units of Stripe: 5 ISK are 500.
//
// Stripe's own stub keeps no payments, so no library serves; a program of its own, it is a part of no other.
package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/payonce/payonce/internal/program"
)

// bodyLimit bounds the body of any request, in bytes.
const bodyLimit = 64 << 10

// Options shape a sandbox. A field with an env tag is a setting of the program.
type Options struct {
	Now            func() time.Time // the sandbox's clock
	Logger         *slog.Logger     // nil discards what is logged
	ProcessingTime time.Duration    // for which pm_card_processing stays processing; 2 s when 0

	// File that keeps the records. Empty: they last as long as the process.
	File string `env:"SANDBOX_FILE"`
	// Address to listen on: the provider's API and the merchant's webhook receiver.
	HTTPAddr string `env:"HTTP_ADDR" envDefault:"127.0.0.1:8090"`
	// Where the provider sends its webhooks. Empty: nowhere.
	WebhookURL string `env:"STRIPE_WEBHOOK_URL"`
	// Secret by which the provider signs its webhooks.
	WebhookSecret program.Secret `env:"STRIPE_WEBHOOK_SECRET"`
	// Secret by which the merchant's receiver checks payonce's webhooks.
	ShopSecret program.Secret `env:"SHOP_WEBHOOK_SECRET"`
}

// Sandbox is the provider (/v1), the shop (/shop/webhooks) and their control calls as one
// http.Handler.
type Sandbox struct {
	http.Handler

	options Options
	shop    *standardwebhooks.Webhook
	client  *http.Client
	running context.Context // delays and deliveries end with it
	stop    context.CancelFunc
	sending sync.WaitGroup

	inFlight sync.Map // the idempotency keys of requests in flight

	mu     sync.Mutex // of what follows
	books  *books
	plan   plan // the faults in force, which end with the process
	random *rand.Rand
}

// New returns a sandbox with the records of its file, which sends events from then on. When ctx ends, so do
// deliveries and all delays, present and future: a delayed request is executed at once. The errors of New are
// sentences that name the environment variable to change.
func New(ctx context.Context, o Options) (_ *Sandbox, err error) {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.ProcessingTime = cmp.Or(o.ProcessingTime, 2*time.Second)
	s := &Sandbox{options: o}
	s.client = &http.Client{
		Timeout: sendDeadline, Transport: &http.Transport{MaxIdleConnsPerHost: senders}, // and no proxy
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // only a 2xx takes an event
	}
	s.follow(noFaults)
	if u, err := url.Parse(o.WebhookURL); o.WebhookURL != "" && (err != nil || u.Host == "") {
		return nil, fmt.Errorf("STRIPE_WEBHOOK_URL is %q: set it to an http or https address", o.WebhookURL)
	}
	if o.WebhookURL != "" && o.WebhookSecret == "" {
		return nil, errors.New("STRIPE_WEBHOOK_SECRET is not set: events to STRIPE_WEBHOOK_URL cannot be signed without it")
	}
	if o.ShopSecret != "" {
		shop, err := standardwebhooks.NewWebhook(o.ShopSecret.Reveal())
		if err != nil {
			return nil, errors.New("SHOP_WEBHOOK_SECRET cannot be read: set it to whsec_ and the secret in base64")
		}
		s.shop = shop
	}
	s.Handler = s.routes()
	if s.books, err = openBooks(o.File); err != nil {
		return nil, err
	}
	s.running, s.stop = context.WithCancel(ctx)
	s.sending.Go(s.deliver)
	return s, nil
}

// Close ends the deliveries, and closes the file. No request may be in flight.
func (s *Sandbox) Close() error {
	s.stop()
	s.sending.Wait()
	if s.books.file == nil {
		return nil
	}
	return s.books.file.Close()
}

func (s *Sandbox) routes() http.Handler {
	mux := http.NewServeMux()
	account := func(*call) any { return stripe.Objects["account"] } // the one, whatever the key
	for _, route := range []struct {
		pattern, parameters string
		run                 endpoint
	}{
		{"GET /v1/account", "", account},
		{"POST /v1/payment_intents", ofCreation, s.createIntent},
		{"GET /v1/payment_intents", ofPage, s.list("payment_intent")},
		{"GET /v1/payment_intents/{id}", "", s.about("payment_intent", "intent", retrieve)},
		{"POST /v1/payment_intents/{id}/confirm", ofConfirmation, s.about("payment_intent", "intent", s.confirmIntent)},
		{"POST /v1/payment_intents/{id}/cancel", ofCancellation, s.about("payment_intent", "intent", s.cancelIntent)},
		{"GET /v1/charges/{id}", "", s.about("charge", "id", retrieve)},
		{"POST /v1/refunds", ofRefund, s.createRefund},
		{"GET /v1/refunds", ofPage + " payment_intent", s.list("refund")},
		{"GET /v1/refunds/{id}", "", s.about("refund", "id", retrieve)},
		{"GET /v1/disputes", ofPage + " payment_intent", s.list("dispute")},
		{"GET /v1/disputes/{id}", "", s.about("dispute", "id", retrieve)},
		{"GET /v1/events", ofPage + " type", s.list("event")},
		{"GET /v1/events/{id}", "", s.about("event", "id", retrieve)},
		{"/v1/", "", unrecognized},
	} {
		mux.HandleFunc(route.pattern, s.provider(route.parameters, route.run))
	}
	alive := func(*call) any { return struct{}{} }
	for pattern, run := range map[string]endpoint{
		"GET /books": s.getBooks, "PUT /faults": s.putFaults, "DELETE /faults": s.deleteFaults,
		"POST /dispute": s.outside(s.dispute), "POST /refund": s.outside(s.refundOutside),
		"/authenticate/{id}": s.about("payment_intent", "intent", s.authenticate),
		"GET /healthz":       alive, "GET /readyz": alive,
	} {
		mux.HandleFunc(pattern, s.control(run))
	}
	mux.HandleFunc("POST /duplicate-webhooks", s.duplicateWebhooks)
	mux.HandleFunc("POST /shop/webhooks", func(w http.ResponseWriter, r *http.Request) {
		c := read(r)
		s.arrive(c)
		s.serve(w, c, s.notify)
	})
	return mux
}

// Run is the program: it reads its settings from environ, serves until
// ctx ends, finishes the requests in flight and returns nil. Its error is the
// sentence with which it refuses to start, or what broke it.
func Run(ctx context.Context, logger *slog.Logger, environ map[string]string, now func() time.Time) error {
	o, err := program.Settings[Options](logger, environ)
	if err != nil {
		return err
	}
	o.Now, o.Logger = now, logger
	s, err := New(ctx, o)
	if err != nil {
		return err
	}
	err = program.Serve(ctx, logger, o.HTTPAddr, &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      slowMax*time.Millisecond + 30*time.Second, // beyond any delay
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	})
	return errors.Join(err, s.Close())
}
