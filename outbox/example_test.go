package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/outbox"
	"github.com/payonce/payonce/outbox/doorbell"
)

// An order and its message are one transaction: both exist, or neither.
func Example() {
	ctx := context.Background()
	pool, end := openPool() // a *pgxpool.Pool
	defer end()

	place := func(id string, failure error) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `insert into orders (id) values ($1)`, id); err != nil {
				return err
			}
			err := outbox.Send(ctx, tx, outbox.Message{
				Topic: "orders", ID: "placed " + id, Type: "order.placed", OrderingKey: id, Payload: []byte(`a mug`),
			})
			return errors.Join(err, failure)
		})
	}
	fmt.Println(place("order-1", nil))
	fmt.Println(place("order-2", errors.New("out of mugs")))
	fmt.Println(groupcommit.Constraint(place("order-1", nil)))

	subscriber := outbox.NewSubscriber(pool, outbox.Options{})
	defer func() { _ = subscriber.Close() }()
	messages, err := subscriber.Subscribe(ctx, "orders")
	if err != nil {
		panic(err)
	}
	m := <-messages
	fmt.Println(m.UUID, m.Metadata.Get(outbox.MetadataType), string(m.Payload))
	m.Ack()
	// Output:
	// <nil>
	// out of mugs
	// orders_pkey
	// placed order-1 order.placed a mug
}

// The broker here is a Go channel. Any message.Publisher serves.
func ExampleForward() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pool, end := openPool() // a *pgxpool.Pool
	defer end()
	broker := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	received, err := broker.Subscribe(ctx, "orders")
	if err != nil {
		panic(err)
	}

	bell := doorbell.New("shop", slog.Default())
	subscriber := outbox.NewSubscriber(pool, outbox.Options{Bell: bell.Bell("orders")})
	rung, ended := make(chan struct{}), make(chan error, 1)
	go func() { bell.Run(ctx, pool); close(rung) }()
	go func() { ended <- outbox.Forward(ctx, subscriber, "orders", broker) }()

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return outbox.Send(ctx, tx,
			outbox.Message{Topic: "orders", ID: "m1", Payload: []byte("a mug")},
			outbox.Message{Topic: "orders", ID: "m2", Payload: []byte("a teapot")})
	})
	if err != nil {
		panic(err)
	}
	bell.Ring("orders") // after the commit; without it the next poll finds them

	for range 2 {
		m := <-received
		fmt.Println(m.UUID, string(m.Payload))
		m.Ack()
	}
	cancel()
	fmt.Println(<-ended)
	<-rung
	// Output:
	// m1 a mug
	// m2 a teapot
	// <nil>
}
