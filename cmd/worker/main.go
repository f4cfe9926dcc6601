// Command worker processes accepted charges: outbox to inbox by Watermill, inbox to the steps
// of fulfillment, and the postings of the ledger to balances.
package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/service"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/upkeep"
	"github.com/payonce/payonce/ledger/books"
	"github.com/payonce/payonce/outbox"
)

const (
	stuckInterval      = 5 * time.Second // between reads of the other sessions
	startCheckInterval = time.Second     // between reads of what the worker waits for at start
	pauseInterval      = 2 * time.Second
)

func main() { os.Exit(program.Main(os.Args[1:], os.Stdout, os.Stderr, "worker", run)) }

// run works until ctx ends.
func run(ctx context.Context, log *slog.Logger, environ map[string]string) error {
	s, err := program.Settings[settings](log, environ)
	if err != nil {
		return err
	}
	o := service.Options{
		Name: "worker", DatabaseURL: s.DatabaseURL, Settings: s.Service, Role: postgres.RoleWorker,
		Writes: slices.Concat(fulfillment.Writes(), inbox.Writes()), Handles: receiverNames(), Now: time.Now,
	}
	return service.Run(ctx, log, environ, o, func(ctx context.Context, w *service.Service) error {
		m := meter(w.Metrics)
		services, provider, err := s.services(m, w.Traces)
		if err != nil {
			return err
		}
		if err := w.Open(ctx); err != nil {
			return err
		}
		w.Metrics.Figures(w.DB, domain.Topic, receiverNames()) //nolint:contextcheck // what one scrape reads serves others
		receivers, err := processors(w, services, m, s)
		if err != nil {
			return err
		}
		var named atomic.Bool // whether the provider has named the account
		w.Ready.Own = func(context.Context) (why string) {
			if why = provider.Blocked(); why == "" && !named.Load() {
				why = "the provider has not said whose key STRIPE_SECRET_KEY is"
			}
			return why
		}
		return w.Serve(ctx, s.HTTPAddr, program.Health(w.Ready, w.Beside()), s.background(w, receivers), func(ctx context.Context) error {
			if err := awaitAccount(ctx, w.Log, w.DB, provider); err != nil || ctx.Err() != nil {
				return err
			}
			named.Store(true)
			return handle(ctx, w, receivers)
		})
	})
}

// background is what a worker does beside its messages, until ctx ends.
func (s settings) background(w *service.Service, receivers []receiver) func(ctx context.Context) error {
	appended := w.Bell.Bell(domain.Topic, service.Ledger)
	return func(ctx context.Context) error {
		var all sync.WaitGroup
		defer all.Wait()
		again := func(failed string, work loop.Work) { all.Go(func() { loop.Run(ctx, w.Log, failed, work) }) }
		all.Go(func() { upkeep.DeleteExpired(ctx, w.DB, w.Log, s.InboxRetention) })
		all.Go(func() { books.KeepBalances(ctx, w.Log, w.DB, appended) })
		again("reading what is paused failed, nothing changes until it is read", func(ctx context.Context) (time.Duration, error) {
			return pauseInterval, followPauses(ctx, w.DB, receivers)
		})
		again("looking at the other sessions of the database failed", func(ctx context.Context) (time.Duration, error) {
			return stuckInterval, endStuckSessions(ctx, w.Log, w.DB)
		})
		if s.AuditInterval > 0 {
			again("the audit of what is new failed and begins anew", func(ctx context.Context) (time.Duration, error) {
				return auditIncrement(ctx, w.Log, w.DB, s.AuditInterval)
			})
		}
		return nil
	}
}

// handle receives messages from the outbox into the inbox and handles them, until ctx ends. The end may
// interrupt a page, which is then read again.
func handle(ctx context.Context, w *service.Service, receivers []receiver) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range receivers {
		g.Go(func() error { return r.processor.Run(ctx) })
		if r.Topic == "" {
			continue
		}
		g.Go(func() error {
			loop.Run(ctx, w.Log, "receiving stopped and begins anew", func(ctx context.Context) (time.Duration, error) {
				subscriber := outbox.NewSubscriber(w.DB.Pool(), outbox.Options{Bell: r.bell, Log: w.Log})
				defer func() { _ = subscriber.Close() }() // it says what Consume says
				return 0, r.processor.Consume(ctx, subscriber, r.Topic, nil)
			})
			return nil
		})
	}
	return g.Wait()
}

// auditIncrement audits what is new, and logs what it finds. The other readers of the ledger have 19 of 20
// parts of the time.
func auditIncrement(ctx context.Context, log *slog.Logger, db *postgres.DB, pause time.Duration) (time.Duration, error) {
	began := time.Now()
	violated, more, err := audit.Continue(ctx, db)
	if more {
		pause = min(pause, 19*time.Since(began))
	}
	for _, c := range violated {
		log.ErrorContext(ctx, "the audit found a broken promise", "check", c.Name, "violated", c.Violated, "examples", c.Examples)
	}
	return pause, err
}

// awaitAccount returns nil once the provider has said that the secret key is of the account that the
// database is bound to, or when ctx ends. Another account is an error, by which the program ends.
func awaitAccount(ctx context.Context, log *slog.Logger, db *postgres.DB, provider *stripe.Client) (end error) {
	waiting, done := context.WithCancel(ctx)
	defer done()
	loop.Run(waiting, log, "no message is handled before the provider has said whose key STRIPE_SECRET_KEY is", func(ctx context.Context) (time.Duration, error) {
		account, err := provider.Account(ctx)
		if err == nil {
			err = upkeep.Bind(ctx, db, account.ID, account.Live)
		}
		if err == nil || errors.Is(err, upkeep.ErrOtherAccount) {
			end = err
			done()
		}
		return startCheckInterval, err
	})
	return end
}

// endStuckSessions ends sessions that stopped in the middle of a transaction, and those of the api
// that are older than a request: while one is open, the readers of the ledger see no later event.
func endStuckSessions(ctx context.Context, log *slog.Logger, db *postgres.DB) error {
	n, err := postgres.EndStuck(ctx, db, service.Prefix, postgres.HalfSent, postgres.Held)
	if n > 0 {
		log.ErrorContext(ctx, "ended sessions that held up others: a program or its network stands still, or an attacker has the api's password", "sessions", n)
	}
	return err
}
