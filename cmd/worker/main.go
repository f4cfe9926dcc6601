// Command worker processes accepted charges: outbox to inbox by Watermill, inbox to the steps
// of fulfillment, and the ledger to its projections.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/doorbell"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/restore"
	"github.com/payonce/payonce/internal/retention"
	"github.com/payonce/payonce/internal/stripe"
	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/internal/writes"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

const (
	programs    = "payonce-" // how the names of our programs' sessions begin
	application = programs + "worker"

	openTimeout           = 10 * time.Second // of what is read at start
	superviseInterval     = 5 * time.Second
	retrySetAsideInterval = time.Minute
	startCheckInterval    = time.Second // between reads of what the worker waits for at start
	pauseInterval         = 2 * time.Second
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
	services, err := s.services(metrics, traces)
	if err != nil {
		return err
	}
	lasting, end := context.WithCancel(context.WithoutCancel(ctx)) // ends after the last commit of the drain
	defer end()
	bell := doorbell.New(log, doorbell.Leads)
	db, err := open(ctx, log, s, traces, bell)
	if err != nil {
		return err
	}
	defer db.Close()
	var ringing sync.WaitGroup
	ringing.Go(func() { bell.Run(lasting, db.Pool()) })
	defer func() { end(); ringing.Wait() }()
	addDatabaseGauges(metrics, db, bell, services.Provider)
	ready := program.NewReadiness(lasting, db, time.Now, restored, keyRefusal(services.Provider))
	defer ready.Close()
	receivers := processors(log, db, services, bell, metrics, traces, s)
	paused := &pauses{db: db, receivers: receivers}
	ready.Paused = paused.shown

	g, ctx := errgroup.WithContext(ctx)
	background := func(work func(ctx context.Context)) {
		g.Go(func() error { work(ctx); return nil })
	}
	g.Go(func() error {
		return program.Serve(ctx, log, s.HTTPAddr, program.Health(ready, s.Beside(metrics.Handler())))
	})
	g.Go(func() error { return program.ServeMetrics(ctx, log, s.MetricsAddr, metrics.Handler()) })
	background((&retention.Job{
		DB: db, Log: log, Name: program.Instance() + "/" + rand.Text(),
		OutboxWindow: s.OutboxRetention, InboxWindow: s.InboxRetention, QuarantineWindow: s.QuarantineRetention,
	}).Run)
	background((&ledger.Projector{DB: db, Bell: bell.Bell(doorbell.Outbox | doorbell.Ledger), Listening: bell.Listening, Log: log}).Run)
	each := func(interval time.Duration, failed string, work func(ctx context.Context) error) {
		background(func(ctx context.Context) {
			loop.Run(ctx, log, failed, func(ctx context.Context) (time.Duration, error) { return interval, work(ctx) })
		})
	}
	background(func(ctx context.Context) { superviseSessions(ctx, log, db, services.Provider) })
	each(retrySetAsideInterval, "reading charges that were set aside failed", func(ctx context.Context) error { return ledger.RetrySetAside(ctx, db) })
	each(pauseInterval, "reading what is paused failed, nothing changes until it is read", paused.read)
	if s.AuditInterval > 0 {
		background(func(ctx context.Context) { auditIncrements(ctx, log, db, s.AuditInterval) })
	}
	g.Go(func() error { return handle(ctx, log, db, services.Provider, bell, receivers) })
	return g.Wait()
}

// handle receives and handles messages once the tables need no repair, and calls the provider once
// its account is known.
func handle(ctx context.Context, log *slog.Logger, db *postgres.DB, provider *stripe.Client, bell *outbox.Doorbell, receivers []receiver) error {
	if !awaitRepair(ctx, log, db) {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range receivers {
		g.Go(func() error { return r.processor.Run(ctx) })
	}
	g.Go(func() error {
		loop.Run(ctx, log, "receiving stopped and begins anew", func(ctx context.Context) (time.Duration, error) {
			return 0, receive(ctx, log, db, bell.Listening, receivers)
		})
		return nil
	})
	g.Go(func() error { return releaseProvider(ctx, log, db, provider) })
	return g.Wait()
}

// auditIncrements audits what is new, and logs what it finds.
func auditIncrements(ctx context.Context, log *slog.Logger, db *postgres.DB, interval time.Duration) {
	loop.Run(ctx, log, "the audit of what is new failed and begins anew", func(ctx context.Context) (time.Duration, error) {
		violated, pause, err := audit.Continue(ctx, db, interval)
		for _, c := range violated {
			log.ErrorContext(ctx, "the audit found a broken promise", "check", c.Name, "violated", c.Violated, "examples", c.Examples)
		}
		return pause, err
	})
}

// awaitRepair returns true once the tables are no unrepaired copy, or false when ctx ends.
// Before that nothing is sent, neither to the provider nor to a merchant.
func awaitRepair(ctx context.Context, log *slog.Logger, db *postgres.DB) bool {
	waiting, repaired := context.WithCancel(ctx)
	defer repaired()
	loop.Run(waiting, log, "looking for a repair of the tables failed", func(ctx context.Context) (time.Duration, error) {
		why, err := restored(ctx, db)
		if why == "" && err == nil {
			repaired()
		}
		return startCheckInterval, err
	})
	return ctx.Err() == nil
}

// releaseProvider releases the requests to the provider once it has said that the secret key is of the
// account that the database is bound to, and returns nil then, or when ctx ends. Another
// account is an error, by which the program ends.
func releaseProvider(ctx context.Context, log *slog.Logger, db *postgres.DB, provider *stripe.Client) (refused error) {
	waiting, done := context.WithCancel(ctx)
	defer done()
	loop.Run(waiting, log, "nothing is sent to the provider before it has said whose key STRIPE_SECRET_KEY is", func(ctx context.Context) (time.Duration, error) {
		account, err := provider.Account(ctx)
		if err == nil {
			err = restore.Bind(ctx, db, account.ID, account.Live)
		}
		switch {
		case errors.Is(err, restore.ErrOtherAccount):
			refused = err
			done()
		case err == nil:
			provider.Release()
			done()
		}
		return startCheckInterval, err
	})
	return refused
}

// open opens the database, which must have every migration.
func open(ctx context.Context, log *slog.Logger, s settings, traces *telemetry.Traces, bell *outbox.Doorbell) (*postgres.DB, error) {
	o := s.Pool(application, postgres.RoleWorker)
	o.Writes = writes.Statements(slices.Concat(fulfillment.Writes(), inbox.Writes())...)
	o.Tracer, o.Committed = traces.Statements(), doorbell.Committed(bell)
	db, err := program.Open(ctx, log, s.DatabaseURL.Reveal(), o)
	if err != nil {
		return nil, err
	}
	once, cancel := context.WithTimeout(ctx, openTimeout) // the server may stop answering
	defer cancel()
	why, err := program.Migrated(once, db)
	if err == nil && why != "" {
		err = errors.New(why)
	}
	if err != nil {
		db.Close()
		return nil, err
	}
	if why, err := restored(once, db); err == nil && why != "" {
		log.ErrorContext(ctx, "no message is handled", "reason", why)
	}
	return db, nil
}

// restored returns why the worker handles no message, if the tables came through a dump and
// were not repaired since. What is accepted meanwhile is not lost.
func restored(ctx context.Context, q postgres.Querier) (why string, err error) {
	n, err := restore.ReadNumbering(ctx, q)
	if err != nil || !n.Foreign() {
		return "", err
	}
	return "the tables were restored from a dump: run payonce outbox repair", nil
}

// keyRefusal returns why the provider does not accept the secret key, as its last answer said.
func keyRefusal(provider *stripe.Client) program.Check {
	return func(context.Context, postgres.Querier) (string, error) { return provider.Blocked(), nil }
}

// countWorkers counts the workers that run. Every worker has open sessions, whose names say
// which process has them. Only those of the workers' users count: another login can choose the
// names of its sessions too.
const countWorkers = `
select count(distinct application_name)
  from pg_stat_activity
 where datname = current_database()
   and application_name like $1
   and pg_has_role(usesysid, 'payonce_worker', 'member')`

// superviseSessions reads the other sessions of the database every 5 s times the number of
// workers, at most a minute, with jitter.
//
//   - It divides the limits of requests to the provider by the living workers. A worker that has
//     just started has all of them until the others count it.
//   - It ends sessions that stopped in the middle of a transaction, and those of the api that
//     are older than a request: while one is open, no later message is received.
func superviseSessions(ctx context.Context, log *slog.Logger, db *postgres.DB, provider *stripe.Client) {
	loop.Run(ctx, log, "looking at the other sessions of the database failed", func(ctx context.Context) (time.Duration, error) {
		var workers int
		if err := db.QueryRow(ctx, countWorkers, application+" %").Scan(&workers); err != nil {
			return 0, fmt.Errorf("count the workers: %w", err)
		}
		provider.Share(workers)
		n, err := postgres.EndStuck(ctx, db, programs, postgres.HalfSent, postgres.Held)
		if n > 0 {
			log.ErrorContext(ctx, "ended sessions that held up others: a program or its network stands still, or an attacker has the api's password", "sessions", n)
		}
		pause := superviseInterval * time.Duration(min(max(workers, 1), 12))
		return pause/2 + mathrand.N(pause), err //nolint:gosec // workers that start together do not stay in phase
	})
}
