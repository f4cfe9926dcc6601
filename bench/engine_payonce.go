package main

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/doorbell"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/outbox"
)

const (
	topic    = "work"
	receiver = "work"
	poll     = 20 * time.Millisecond // as the worker's
)

// payonceCarrier is payonce's engine as the programs wire it: accept, outbox, Watermill,
// inbox, handler, with pools of the programs' sizes.
func payonceCarrier(ctx context.Context, c *carrier) (accepting, error) {
	bell := doorbell.New(quiet(), true)
	accepts, err := postgres.Open(ctx, c.Database, postgres.Options{Application: "bench-accept", Writes: writes(), Committed: doorbell.Committed(bell)})
	if err != nil {
		return nil, err
	}
	processes, err := postgres.Open(ctx, c.Database, postgres.Options{Application: "bench-process", Writes: writes()})
	if err != nil {
		return nil, err
	}
	processor := newProcessor(processes, c.task, func(ctx context.Context, d *inbox.Delivery) error {
		last := false
		commit := func(ctx context.Context, b *pgx.Batch) error {
			if last {
				return d.Commit(ctx, processes, b)
			}
			return processes.Commit(ctx, b)
		}
		return c.do(ctx, d.ID, commit, func(*pgx.Batch) { last = true })
	})
	processor.Wake, processor.Listening = bell.Bell(doorbell.Inbox), bell.Listening
	c.background.Go(func() error { bell.Run(ctx, accepts.Pool()); return nil })
	c.background.Go(func() error { return processor.Run(ctx) })
	c.background.Go(func() error {
		return receiving(ctx, c.Database, processor, outbox.Options{
			Bell: bell.Bell(doorbell.Outbox), Listening: bell.Listening, Capacity: processor.Capacity,
		})
	})
	return func(ctx context.Context, b *pgx.Batch, id string) error {
		if err := outbox.Append(b, outbox.Message{Topic: topic, ID: id, Type: "work", OrderingKey: id, Payload: []byte(id)}); err != nil {
			return err
		}
		return accepts.Commit(ctx, b)
	}, nil
}

func newProcessor(db *postgres.DB, t task, handle inbox.Handler) *inbox.Processor {
	return &inbox.Processor{
		DB: db, Receiver: receiver, Holder: "bench", Handle: handle, Concurrency: t.InFlight,
		Policy: inbox.Policy{
			Lease: 3 * time.Second, MaxAttempts: 12, GiveUpAfter: time.Hour,
			BackoffBase: 200 * time.Millisecond, BackoffCap: time.Minute,
		},
		Poll: poll, Drain: time.Second, Log: quiet(),
	}
}

// receiving takes messages from the outbox into the inbox until ctx ends.
func receiving(ctx context.Context, url string, processor *inbox.Processor, options outbox.Options) error {
	db, err := postgres.Open(ctx, url, postgres.Options{
		Application: "bench-subscriber", MaxConns: 3,
	})
	if err != nil {
		return err
	}
	defer db.Close()
	options.Log = quiet()
	subscriber := outbox.NewSubscriber(db.Pool(), "inbox", options)
	defer func() { _ = subscriber.Close() }() // it says what Consume says
	return processor.Consume(ctx, inbox.Source{
		Subscriber: subscriber, Topic: topic, Split: outbox.Messages,
		Read: func(m *message.Message) (inbox.Message, error) {
			return inbox.Message{Type: m.Metadata.Get(outbox.MetadataType), OrderingKey: m.Metadata.Get(outbox.MetadataOrderingKey)}, nil
		},
	})
}
