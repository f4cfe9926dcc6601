// Command worker processes accepted charges: outbox to inbox by Watermill, inbox to the steps
// of fulfillment, and the postings of the ledger to balances.
package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/retention"
	"github.com/payonce/payonce/internal/service"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

const (
	programs    = "payonce-" // how the names of our programs' sessions begin
	application = programs + "worker"

	stuckInterval      = 5 * time.Second // between reads of the other sessions, on average
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
	traces, log, err := program.Traces(ctx, log, environ, application)
	if err != nil {
		return err
	}
	defer traces.Close(ctx)
	metrics := meter(log)
	services, provider, err := s.services(metrics, traces)
	if err != nil {
		return err
	}
	bell := service.NewBell(log)
	lasting, end := context.WithCancel(context.WithoutCancel(ctx)) // ends after the last commit of the drain
	defer end()
	db, err := open(ctx, log, s, traces, bell)
	if err != nil {
		return err
	}
	defer db.Close()
	addDatabaseGauges(metrics, db, provider)
	named := make(chan struct{}) // closed when the provider has named the account
	ready := program.NewReadiness(lasting, db, time.Now, accountRefusal(provider, named))
	defer ready.Close()
	receivers, err := processors(log, db, services, bell, metrics, traces, s)
	if err != nil {
		return err
	}
	paused := &pauses{db: db, receivers: receivers}
	ready.Paused = paused.shown
	appended := bell.Bell(domain.Topic, service.Ledger)
	var ringing sync.WaitGroup
	ringing.Go(func() { bell.Run(lasting, db.Pool()) }) // it listens for the bells above
	defer func() { end(); ringing.Wait() }()

	g, ctx := errgroup.WithContext(ctx)
	background := func(work func(ctx context.Context)) {
		g.Go(func() error { work(ctx); return nil })
	}
	g.Go(func() error {
		return program.Serve(ctx, log, s.HTTPAddr, program.Health(ready, s.Beside(metrics.Handler())))
	})
	g.Go(func() error { return program.ServeMetrics(ctx, log, s.MetricsAddr, metrics.Handler()) })
	background((&retention.Job{DB: db, Log: log, InboxWindow: s.InboxRetention}).Run)
	background(func(ctx context.Context) { ledger.KeepBalances(ctx, log, db, appended) })
	each := func(interval time.Duration, failed string, work func(ctx context.Context) error) {
		background(func(ctx context.Context) {
			loop.Run(ctx, log, failed, func(ctx context.Context) (time.Duration, error) { return interval, work(ctx) })
		})
	}
	background(func(ctx context.Context) { endStuckSessions(ctx, log, db) })
	each(pauseInterval, "reading what is paused failed, nothing changes until it is read", paused.read)
	if s.AuditInterval > 0 {
		background(func(ctx context.Context) { auditIncrements(ctx, log, db, s.AuditInterval) })
	}
	g.Go(func() error { return handle(ctx, log, db, provider, named, receivers) })
	return g.Wait()
}

// handle receives and handles messages once the provider's account is the one that the database is bound
// to.
func handle(
	ctx context.Context, log *slog.Logger, db *postgres.DB, provider *stripe.Client, named chan struct{}, receivers []receiver,
) error {
	if err := awaitAccount(ctx, log, db, provider); err != nil || ctx.Err() != nil {
		return err
	}
	close(named)
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range receivers {
		g.Go(func() error { return r.processor.Run(ctx) })
	}
	g.Go(func() error {
		loop.Run(ctx, log, "receiving stopped and begins anew", func(ctx context.Context) (time.Duration, error) {
			return 0, receive(ctx, log, db, receivers)
		})
		return nil
	})
	return g.Wait()
}

// auditIncrements audits what is new, and logs what it finds.
func auditIncrements(ctx context.Context, log *slog.Logger, db *postgres.DB, interval time.Duration) {
	loop.Run(ctx, log, "the audit of what is new failed and begins anew", func(ctx context.Context) (time.Duration, error) {
		began, pause := time.Now(), interval
		violated, more, err := audit.Continue(ctx, db)
		if more { // the other readers of the ledger have 19 of 20 parts of the time
			pause = min(interval, 19*time.Since(began))
		}
		for _, c := range violated {
			log.ErrorContext(ctx, "the audit found a broken promise", "check", c.Name, "violated", c.Violated, "examples", c.Examples)
		}
		return pause, err
	})
}

// awaitAccount returns nil once the provider has said that the secret key is of the account that the
// database is bound to, or when ctx ends. Another account is an error, by which the program ends.
func awaitAccount(ctx context.Context, log *slog.Logger, db *postgres.DB, provider *stripe.Client) (refused error) {
	waiting, done := context.WithCancel(ctx)
	defer done()
	loop.Run(waiting, log, "no message is handled before the provider has said whose key STRIPE_SECRET_KEY is", func(ctx context.Context) (time.Duration, error) {
		account, err := provider.Account(ctx)
		if err == nil {
			err = restore.Bind(ctx, db, account.ID, account.Live)
		}
		if errors.Is(err, restore.ErrOtherAccount) {
			refused = err
		}
		if err == nil || refused != nil {
			done()
		}
		return startCheckInterval, err
	})
	return refused
}

// open opens the database.
func open(ctx context.Context, log *slog.Logger, s settings, traces *telemetry.Traces, bell *outbox.Doorbell) (*postgres.DB, error) {
	o := s.Pool(application, postgres.RoleWorker)
	o.CheckSession = restore.CheckSession()
	o.Writes = service.Statements(slices.Concat(fulfillment.Writes(), inbox.Writes())...)
	o.Tracer, o.Committed = traces.Statements(), service.Committed(bell, receiverNames()...)
	return program.Open(ctx, log, s.DatabaseURL.Reveal(), o)
}

// accountRefusal returns why the provider does not accept the secret key, as its last answer said, or
// that it has not named the account. A worker that has just started gets a moment for that.
func accountRefusal(provider *stripe.Client, named <-chan struct{}) program.Check {
	return func(ctx context.Context, _ postgres.Querier) (string, error) {
		select {
		case <-named:
			return provider.Blocked(), nil
		case <-ctx.Done():
		case <-time.After(startCheckInterval):
		}
		return cmp.Or(provider.Blocked(), "the provider has not said whose key STRIPE_SECRET_KEY is"), nil
	}
}

// endStuckSessions ends sessions that stopped in the middle of a transaction, and those of the api
// that are older than a request: while one is open, the readers of the ledger see no later event.
func endStuckSessions(ctx context.Context, log *slog.Logger, db *postgres.DB) {
	loop.Run(ctx, log, "looking at the other sessions of the database failed", func(ctx context.Context) (time.Duration, error) {
		n, err := postgres.EndStuck(ctx, db, programs, postgres.HalfSent, postgres.Held)
		if n > 0 {
			log.ErrorContext(ctx, "ended sessions that held up others: a program or its network stands still, or an attacker has the api's password", "sessions", n)
		}
		return stuckInterval/2 + mathrand.N(stuckInterval), err //nolint:gosec // workers that start together do not stay in phase
	})
}
