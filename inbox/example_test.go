package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// A message is delivered twice and fails once; what it causes happens once.
func Example() {
	db, end := testdb.Example()
	defer end()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log := slog.New(slog.DiscardHandler)

	b := &pgx.Batch{}
	for range 2 {
		err := outbox.Append(b, outbox.Message{Topic: "orders", ID: "m1", Type: "order.placed", OrderingKey: "order 1", Payload: []byte("a mug")})
		if err != nil {
			panic(err)
		}
	}
	if err := db.Commit(ctx, b); err != nil {
		panic(err)
	}

	// Process.
	done := make(chan struct{})
	shop := &inbox.Processor{
		DB: db, Receiver: "shop", Holder: "worker 1", Concurrency: 4, Poll: time.Millisecond, Drain: time.Second, Log: log,
		Policy: inbox.Policy{
			Lease: 3 * time.Second, MaxAttempts: 12, GiveUpAfter: time.Hour,
			BackoffBase: time.Millisecond, BackoffCap: time.Second,
		},
		Handle: func(ctx context.Context, d *inbox.Delivery) error {
			fmt.Printf("attempt %d: %s of %s\n", d.Attempt, d.Type, d.Payload)
			if d.Attempt == 1 {
				return errors.New("the printer is on fire")
			}
			b := &pgx.Batch{}
			b.Queue(`insert into merchants (merchant_id) values ('an-effect')`)
			defer close(done)
			return d.Commit(ctx, db, b) // if another holder has taken over, all of b is refused
		},
	}
	stopped := make(chan struct{})
	go func() { _ = shop.Run(ctx); close(stopped) }()

	// Receive.
	subscriber := outbox.NewSubscriber(db.Pool(), "inbox", outbox.Options{Room: shop.Room})
	defer func() { _ = subscriber.Close() }()
	deliveries, received := 0, make(chan struct{})
	shop.OnReceive = func(r inbox.Reception) {
		if deliveries += r.New + r.Duplicates; deliveries == 2 {
			close(received)
		}
	}
	go func() {
		err := shop.Consume(ctx, inbox.Source{Subscriber: subscriber, Topic: "orders", Split: outbox.Messages, Read: func(m *message.Message) (inbox.Message, error) {
			return inbox.Message{Type: m.Metadata.Get(outbox.MetadataType), OrderingKey: m.Metadata.Get(outbox.MetadataOrderingKey)}, nil
		}})
		if err != nil {
			panic(err)
		}
	}()
	<-received
	<-done
	cancel()
	<-stopped

	var status string
	var attempts, duplicates int
	err := db.QueryRow(context.Background(), `select status, attempts, duplicates from inbox`).Scan(&status, &attempts, &duplicates)
	fmt.Println(status, attempts, duplicates, err)
	// Output:
	// attempt 1: order.placed of a mug
	// attempt 2: order.placed of a mug
	// done 2 1 <nil>
}
