package sandbox

import (
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
)

// settings are the program's environment.
type settings struct {
	// Connection string of the sandbox's own PostgreSQL database.
	DatabaseURL program.Secret `env:"DATABASE_URL,required,notEmpty"`
	// Permits a database over a network without TLS that verifies the server.
	AllowPlaintext bool `env:"ALLOW_PLAINTEXT"`
	// Address to listen on: the provider's API and the merchant's webhook receiver.
	HTTPAddr string `env:"HTTP_ADDR" envDefault:"127.0.0.1:8090"`
	// Where the provider sends its webhooks. Empty: nowhere.
	StripeWebhookURL string `env:"STRIPE_WEBHOOK_URL"`
	// Secret by which the provider signs its webhooks.
	StripeWebhookSecret program.Secret `env:"STRIPE_WEBHOOK_SECRET"`
	// Secret by which the merchant's receiver checks payonce's webhooks.
	ShopWebhookSecret program.Secret `env:"SHOP_WEBHOOK_SECRET"`
}

// Run is the program: it reads its settings from environ, migrates its database, serves until
// ctx ends, finishes the requests in flight and returns nil. Its error is the
// sentence with which it refuses to start, or what broke it.
func Run(ctx context.Context, logger *slog.Logger, environ map[string]string, now func() time.Time) error {
	conf, err := program.Settings[settings](logger, environ)
	if err != nil {
		return err
	}
	db, err := postgres.Open(ctx, conf.DatabaseURL.Reveal(), postgres.Options{
		Application: "payonce sandbox", MaxConns: 20, LockTimeout: 2 * time.Second,
		AllowPlaintext: conf.AllowPlaintext, AllowUnsafeDurability: true, // a stand-in needs no durable server
	})
	if err != nil {
		return err
	}
	defer db.Close()
	s, err := New(db.Pool(), Options{
		Now: now, Logger: logger, WebhookURL: conf.StripeWebhookURL,
		WebhookSecret: conf.StripeWebhookSecret.Reveal(), ShopSecret: conf.ShopWebhookSecret.Reveal(),
	})
	if err != nil {
		return err
	}
	if err := Migrate(ctx, conf.DatabaseURL.Reveal()); err != nil {
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
	return err
}

//go:embed schema.sql
var schema string

const (
	lockMigration = `select pg_advisory_xact_lock(hashtext('sandbox migration'))`
	hasTables     = `select to_regclass('requests') is not null`
)

// Migrate creates the sandbox's tables in its own database at url, unless they are there.
// Several programs may run it at the same time.
func Migrate(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("migrate the sandbox: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // nothing is in flight
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockMigration); err != nil {
			return err
		}
		var there bool
		if err := tx.QueryRow(ctx, hasTables).Scan(&there); err != nil || there {
			return err
		}
		_, err := tx.Exec(ctx, schema)
		return err
	})
	if err != nil {
		return fmt.Errorf("migrate the sandbox: %w", err)
	}
	return nil
}
