package sandbox

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/payonce/payonce/internal/program"
)

// settings are the program's environment.
type settings struct {
	// File that keeps the records. Empty: they last as long as the process.
	File string `env:"SANDBOX_FILE"`
	// Address to listen on: the provider's API and the merchant's webhook receiver.
	HTTPAddr string `env:"HTTP_ADDR" envDefault:"127.0.0.1:8090"`
	// Where the provider sends its webhooks. Empty: nowhere.
	StripeWebhookURL string `env:"STRIPE_WEBHOOK_URL"`
	// Secret by which the provider signs its webhooks.
	StripeWebhookSecret program.Secret `env:"STRIPE_WEBHOOK_SECRET"`
	// Secret by which the merchant's receiver checks payonce's webhooks.
	ShopWebhookSecret program.Secret `env:"SHOP_WEBHOOK_SECRET"`
}

// Run is the program: it reads its settings from environ, serves until
// ctx ends, finishes the requests in flight and returns nil. Its error is the
// sentence with which it refuses to start, or what broke it.
func Run(ctx context.Context, logger *slog.Logger, environ map[string]string, now func() time.Time) error {
	conf, err := program.Settings[settings](logger, environ)
	if err != nil {
		return err
	}
	s, err := New(Options{
		Now: now, Logger: logger, File: conf.File, WebhookURL: conf.StripeWebhookURL,
		WebhookSecret: conf.StripeWebhookSecret.Reveal(), ShopSecret: conf.ShopWebhookSecret.Reveal(),
	})
	if err != nil {
		return err
	}
	delivering, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { s.Deliver(delivering) })
	context.AfterFunc(ctx, s.Drain)
	err = program.Serve(ctx, logger, conf.HTTPAddr, &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      slowMax*time.Millisecond + 30*time.Second, // beyond any delay
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	})
	stop()
	background.Wait()
	return errors.Join(err, s.Close())
}
