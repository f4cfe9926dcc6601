package sandbox

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	// workDeadline bounds what one request does in the database, its arrival and
	// its execution each. It runs on when the client has gone, as a provider's
	// work does, and is short enough to end within drainDeadline.
	workDeadline = 4 * time.Second
	// bodyLimit bounds the body of any request, in bytes.
	bodyLimit = 64 << 10
	// processingTime is how long pm_card_processing stays processing by default.
	processingTime = 2 * time.Second
)

// Options shape a sandbox.
type Options struct {
	// Now dates what is shown and signed. It decides nothing: keys and
	// deliveries age by the database's clock.
	Now func() time.Time
	// Logger takes what the background work has to say; nil discards it.
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

// Sandbox is the provider, the shop and their control calls as one
// http.Handler. The background work (sending events, settling intents that are
// processing) is Deliver's.
type Sandbox struct {
	pool     *pgxpool.Pool
	options  Options
	logger   *slog.Logger
	shop     *standardwebhooks.Webhook
	client   *http.Client
	faults   *faults
	inFlight inFlight
	handler  http.Handler
	// wake tells Deliver that an event was committed.
	wake chan struct{}
	// draining is closed by Drain.
	draining chan struct{}
	drain    sync.Once
}

// New returns a sandbox over its migrated database. Its errors are sentences
// that name the environment variable to change.
func New(pool *pgxpool.Pool, o Options) (*Sandbox, error) {
	if pool == nil || o.Now == nil {
		return nil, errors.New("a sandbox needs a pool and a clock")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.ProcessingTime <= 0 {
		o.ProcessingTime = processingTime
	}
	s := &Sandbox{
		pool:     pool,
		options:  o,
		logger:   o.Logger,
		client:   eventClient(),
		faults:   newFaults(),
		inFlight: inFlight{keys: make(map[string]bool)},
		wake:     make(chan struct{}, 1),
		draining: make(chan struct{}),
	}
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
	s.handler = s.routes()
	return s, nil
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
	mux.HandleFunc("POST /v1/payment_intents", s.provider(s.write(s.createIntent)))
	mux.HandleFunc("GET /v1/payment_intents", s.provider(s.read(s.listIntents)))
	mux.HandleFunc("GET /v1/payment_intents/{id}", s.provider(s.read(s.retrieveIntent)))
	mux.HandleFunc("POST /v1/payment_intents/{id}/confirm", s.provider(s.write(s.confirmIntent)))
	mux.HandleFunc("POST /v1/payment_intents/{id}/cancel", s.provider(s.write(s.cancelIntent)))
	mux.HandleFunc("POST /v1/refunds", s.provider(s.write(s.createRefund)))
	mux.HandleFunc("GET /v1/refunds", s.provider(s.read(s.listRefunds)))
	mux.HandleFunc("GET /v1/refunds/{id}", s.provider(s.read(s.retrieveRefund)))
	mux.HandleFunc("/v1/", s.provider(unrecognized))

	mux.HandleFunc("POST /shop/webhooks", s.receiveNotification)

	mux.HandleFunc("GET /books", s.getBooks)
	mux.HandleFunc("PUT /faults", s.putFaults)
	mux.HandleFunc("DELETE /faults", s.deleteFaults)
	mux.HandleFunc("POST /duplicate-webhooks", s.duplicateWebhooks)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, struct{}{}) })
	mux.HandleFunc("GET /readyz", s.ready)
	return mux
}

// ServeHTTP serves the provider (/v1), the shop (/shop/webhooks) and the
// control calls.
func (s *Sandbox) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Drain ends every delay, those under way and those to come: a server that
// shuts down calls it so that delayed requests are carried out at once.
func (s *Sandbox) Drain() { s.drain.Do(func() { close(s.draining) }) }

// delay waits for d, or less when the sandbox drains. The client's leaving does
// not end it: a request on its way arrives whether or not its sender waits.
func (s *Sandbox) delay(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.draining:
	}
}

// newID returns an identifier that nobody can guess, Stripe's prefix included.
func newID(prefix string) string { return prefix + rand.Text() }
