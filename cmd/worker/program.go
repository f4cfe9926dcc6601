package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/stdlib"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/fulfillment"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/doorbell"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/internal/program"
	"github.com/payonce/payonce/internal/retention"
	"github.com/payonce/payonce/internal/telemetry"
	"github.com/payonce/payonce/internal/writes"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/migrations/version"
	"github.com/payonce/payonce/outbox"
)

const (
	application = programs + "worker"
	group       = "inbox"               // the consumer group of the outbox
	poll        = 20 * time.Millisecond // between claims, at least
	resubscribe = 250 * time.Millisecond

	// The subscriber's sessions: a standby waits for the group's offset row for
	// as long as the active one works, so no lock time-out, and a pool of its own.
	subscriberConns     = 4
	subscriberStatement = time.Minute

	callTimeout = 10 * time.Second // of one provider call or webhook
)

// run works until ctx ends.
func run(ctx context.Context, log *slog.Logger, environ map[string]string) error {
	settings, err := program.Load[Settings](environ)
	if err != nil {
		return err
	}
	if err := settings.check(); err != nil {
		return err
	}
	program.LogSettings(log, settings)
	traces, log, err := program.Traces(ctx, log, environ, application)
	if err != nil {
		return err
	}
	defer traces.Close(ctx)
	metrics := meter(log)
	services, err := settings.services(metrics, traces)
	if err != nil {
		return err
	}
	options := postgres.Options{
		Application: application, Role: postgres.RoleWorker, SharedCommits: 1, Writes: writes.Order(slices.Concat(fulfillment.Writes(), inbox.Writes())...),
		Tracer: traces.Statements(), AllowPlaintext: settings.AllowPlaintext,
	}
	bell, err := doorbell.New(settings.DatabaseURL.Reveal(), log, doorbell.Options{Application: application + "-doorbell", Listen: true})
	if err != nil {
		return err
	}
	options.Committed = bell.Committed
	db, err := program.Open(ctx, log, settings.DatabaseURL.Reveal(), options)
	if err != nil {
		return err
	}
	defer program.Close(db)
	pending, err := version.Pending(ctx, db)
	if err != nil {
		return err
	}
	if pending {
		return errors.New("the database lacks a migration of this program: run payonce migrate")
	}
	options.MaxConns, options.LockTimeout, options.StatementTimeout = subscriberConns, -1, subscriberStatement
	options.Settings, options.Tracer, options.Writes, options.Committed = outbox.SessionSettings(), nil, nil, nil // it does nothing that is of a trace, and commits offsets alone
	subscriberDB, err := program.Open(ctx, log, settings.DatabaseURL.Reveal(), options)
	if err != nil {
		return err
	}
	defer program.Close(subscriberDB)
	watch(metrics, db, subscriberDB)
	metrics.Doorbell(bell.Listening)
	if why, err := restored(ctx, db); err == nil && why != "" {
		log.ErrorContext(ctx, "not receiving", "reason", why)
	}

	ready := program.NewReadiness(db, time.Now, restored)
	defer ready.Close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return program.Serve(ctx, log, settings.HTTPAddr, program.Health(ready, metrics.Handler()))
	})
	g.Go(func() error { bell.Run(ctx); return nil })
	receivers := processors(log, db, services, metrics, traces, settings)
	for _, r := range receivers {
		r.processor.Wake, r.processor.Listening, r.processor.Left = bell.Bell(doorbell.Inbox), bell.Listening, func() { bell.Ring(doorbell.Inbox) }
	}
	g.Go(func() error { return receiveAlways(ctx, log, subscriberDB, bell, observeReception(metrics), receivers) })
	g.Go(func() error { janitor(log, db, settings).Run(ctx); return nil })
	g.Go(func() error { rescue(ctx, log, db); return nil })
	g.Go(func() error {
		(&ledger.Projector{DB: db, Bell: bell.Bell(doorbell.Outbox | doorbell.Ledger), Listening: bell.Listening, Log: log}).Run(ctx)
		return nil
	})
	for _, r := range receivers {
		g.Go(func() error { r.processor.Run(ctx); return nil })
	}
	return g.Wait()
}

// receiveAlways begins anew when the router could not even subscribe: the
// database may be restarting.
func receiveAlways(ctx context.Context, log *slog.Logger, db *postgres.DB, bell *doorbell.Doorbell, told func(inbox.Reception), receivers []receiver) error {
	bells := make(map[string]<-chan struct{}, len(receivers)) // once: a doorbell keeps all that it has made
	for _, r := range receivers {
		bells[r.Name] = bell.Bell(doorbell.Outbox)
	}
	for {
		err := receive(ctx, log, db, bells, bell.Listening, told, receivers)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped, as it was told
		}
		log.WarnContext(ctx, "receiving stopped and begins anew", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(resubscribe):
		}
	}
}

// receive runs the Watermill router that takes messages from the outbox into
// the inbox: each topic by a subscription of its receiver. Stopping it may interrupt a
// page, which is then read again.
func receive(ctx context.Context, log *slog.Logger, db *postgres.DB, bells map[string]<-chan struct{}, listening func() bool, told func(inbox.Reception), receivers []receiver) error {
	conns := stdlib.OpenDBFromPool(db.Pool())
	defer func() { _ = conns.Close() }() // the pool itself is closed by its owner
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Second}, outbox.Logger(log))
	if err != nil {
		return fmt.Errorf("make the router: %w", err)
	}
	for _, r := range receivers {
		if r.Topic == "" {
			continue
		}
		subscriber := outbox.NewSubscriber(conns, group, log, outbox.Options{
			Bell: bells[r.Name], Listening: listening, Room: r.processor.Room,
		})
		messages, err := subscriber.Subscribe(ctx, r.Topic)
		if err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
		defer func() { _ = subscriber.Close() }() // it says what Run says
		router.AddConsumerHandler(r.Topic, r.Topic, subscribed{subscriber, messages},
			outbox.ByPage(log, r.processor.Receive(routing(log, r.Receiver), told))) //nolint:contextcheck // a message carries its own context
	}
	if err := router.Run(ctx); err != nil {
		return fmt.Errorf("run the router: %w", err)
	}
	return nil
}

// subscribed is a subscriber whose one subscription has begun. A router that
// cannot subscribe leaves a goroutine behind, at every attempt while the database
// is away.
type subscribed struct {
	message.Subscriber

	messages <-chan *message.Message
}

func (s subscribed) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return s.messages, nil
}

// routing reads what a receiver takes of its topic, and logs what it does not. payonce
// sends none such: it is a newer program's, or somebody else's.
func routing(log *slog.Logger, receiver fulfillment.Receiver) func(*message.Message) (inbox.Envelope, bool) {
	return func(m *message.Message) (inbox.Envelope, bool) {
		e := inbox.Envelope{
			Type:        m.Metadata.Get(outbox.MetadataType),
			OrderingKey: m.Metadata.Get(outbox.MetadataOrderingKey),
			Partition:   m.Metadata.Get(outbox.MetadataPartition),
		}
		if receiver.Takes(domain.EventTypeNamed(e.Type)) {
			return e, true
		}
		log.Warn("message passed over, its receiver does not know its type", "message_id", m.UUID, "receiver", receiver.Name, "type", e.Type, "ordering_key", e.OrderingKey)
		return e, false
	}
}

// receiver is a receiver of messages and its processor, which has claims of its own.
type receiver struct {
	fulfillment.Receiver

	processor *inbox.Processor
}

func processors(log *slog.Logger, db *postgres.DB, services fulfillment.Services, metrics *metrics, traces *telemetry.Traces, settings Settings) []receiver {
	f := fulfillment.New(db, services, log)
	f.OnStep = observeSteps(metrics, traces)
	var receivers []receiver
	for _, r := range f.Receivers() {
		policy := settings.policy()
		policy.Parked = r.Parked
		receivers = append(receivers, receiver{r, &inbox.Processor{
			DB:          db,
			Receiver:    r.Name,
			Holder:      holder(),
			Handle:      onward(traces, r.Handle),
			Concurrency: settings.WorkerConcurrency,
			Policy:      policy,
			Poll:        poll,
			Drain:       program.DrainTime(),
			Log:         log,
			Observer:    observeReceiver(metrics, traces, r.Name),
		}})
	}
	return receivers
}

func janitor(log *slog.Logger, db *postgres.DB, settings Settings) *retention.Janitor {
	return &retention.Janitor{
		DB:              db,
		Log:             log,
		Name:            holder() + "/" + rand.Text(),
		OutboxRetention: settings.OutboxRetention,
		InboxRetention:  settings.InboxRetention,
	}
}

// holder names this process in claims.
func holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}
