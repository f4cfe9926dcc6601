package main

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/doorbell"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/outbox"
)

const (
	topic    = "work"
	receiver = "work"
)

// payonceCarrier is payonce's engine as the programs wire it: accept, outbox, Watermill,
// inbox, handler, with pools of the programs' sizes.
func payonceCarrier(ctx context.Context, c *carrier) (accepting, error) {
	bell := doorbell.New(quiet())
	accepts, err := postgres.Open(ctx, c.Database, postgres.Options{Application: "bench-accept", Writes: writes(), Committed: doorbell.Committed(bell)})
	if err != nil {
		return nil, err
	}
	processes, err := postgres.Open(ctx, c.Database, postgres.Options{Application: "bench-process", Writes: writes()})
	if err != nil {
		return nil, err
	}
	handle := func(ctx context.Context, d *inbox.Delivery) error {
		return c.do(ctx, d.ID, func(ctx context.Context, b *pgx.Batch, last bool) error {
			if last {
				return d.Commit(ctx, processes, b)
			}
			return processes.Commit(ctx, b)
		})
	}
	processor, err := inbox.New(inbox.Options{
		DB: processes, Receiver: receiver, Handle: handle, Concurrency: c.InFlight, Log: quiet(), Wake: bell.Bell(receiver),
	})
	if err != nil {
		return nil, err
	}
	rung := bell.Bell(topic)
	c.background.Go(func() error { bell.Run(ctx, accepts.Pool()); return nil })
	c.background.Go(func() error { return processor.Run(ctx) })
	c.background.Go(func() error {
		return receiving(ctx, c.Database, processor, outbox.Options{Bell: rung})
	})
	return func(ctx context.Context, b *pgx.Batch, id string) error {
		if err := outbox.Append(b, outbox.Message{Topic: topic, ID: id, Type: "work", OrderingKey: id, Payload: []byte(id)}); err != nil {
			return err
		}
		return accepts.Commit(ctx, b)
	}, nil
}

// receiving takes messages from the outbox into the inbox until ctx ends.
func receiving(ctx context.Context, url string, processor *inbox.Processor, options outbox.Options) error {
	db, err := postgres.Open(ctx, url, postgres.Options{Application: "bench-subscriber", MaxConns: 3})
	if err != nil {
		return err
	}
	defer db.Close()
	options.Log = quiet()
	subscriber := outbox.NewSubscriber(db.Pool(), options)
	defer func() { _ = subscriber.Close() }() // it says what Consume says
	return processor.Consume(ctx, subscriber, topic, nil)
}
