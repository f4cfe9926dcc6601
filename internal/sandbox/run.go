package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/payonce/payonce/internal/config"
	"github.com/payonce/payonce/internal/postgres"
)

// Settings are the program's environment.
type Settings struct {
	DatabaseURL         config.Secret `env:"DATABASE_URL,required,notEmpty"`
	AllowPlaintext      bool          `env:"ALLOW_PLAINTEXT"`
	HTTPAddr            string        `env:"HTTP_ADDR" envDefault:"127.0.0.1:8090"`
	StripeWebhookURL    string        `env:"STRIPE_WEBHOOK_URL"`
	StripeWebhookSecret config.Secret `env:"STRIPE_WEBHOOK_SECRET"`
	ShopWebhookSecret   config.Secret `env:"SHOP_WEBHOOK_SECRET"`
}

// drainDeadline bounds a shutdown: under the 10 s that a program may take.
const drainDeadline = 8 * time.Second

// Run is the program: it reads its settings, migrates its database, serves
// until ctx ends, finishes the requests under way and returns nil. Its error is
// the sentence with which it refuses to start, or what broke it.
func Run(ctx context.Context, logger *slog.Logger, now func() time.Time) error {
	settings, err := config.Load[Settings]()
	if err != nil {
		return err
	}
	config.LogSettings(logger, settings)
	// The sandbox is a stand-in: it takes the server's durability as it is.
	db, err := postgres.Open(ctx, settings.DatabaseURL.Reveal(), postgres.Options{
		Application: "payonce sandbox", MaxConns: 20, LockTimeout: 2 * time.Second,
		AllowPlaintext: settings.AllowPlaintext, AllowUnsafeDurability: true,
	})
	if err != nil {
		return err
	}
	defer db.Close()
	s, err := New(db.Pool(), Options{
		Now: now, Logger: logger, WebhookURL: settings.StripeWebhookURL,
		WebhookSecret: settings.StripeWebhookSecret.Reveal(), ShopSecret: settings.ShopWebhookSecret.Reveal(),
	})
	if err != nil {
		return err
	}
	if err := Migrate(ctx, settings.DatabaseURL.Reveal()); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", settings.HTTPAddr)
	if err != nil {
		return fmt.Errorf("HTTP_ADDR %s cannot be listened on: %w", settings.HTTPAddr, err)
	}
	logger.Info("listening", "addr", listener.Addr().String())
	return s.serve(ctx, listener)
}

// serve answers on the listener and delivers events until ctx ends.
func (s *Sandbox) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      slowMax*time.Millisecond + 30*time.Second, // beyond any delay
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn),
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var delivering sync.WaitGroup
	delivering.Go(func() { _ = s.Deliver(background) })
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
		s.logger.Info("draining")
		s.Drain()
		stop()
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainDeadline)
		defer cancel()
		if err = server.Shutdown(patience); err != nil {
			err = errors.Join(fmt.Errorf("drain: %w", err), server.Close())
		}
	}
	stop()
	delivering.Wait()
	return err
}
