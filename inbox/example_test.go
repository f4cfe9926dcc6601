package inbox_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/outbox"
)

// A broker delivers two messages, one of them twice. Each takes effect once: the insert and
// the end of the message are one transaction.
func Example() {
	pool, end := openPool() // a *pgxpool.Pool on a database with inbox.Schema and a table sales
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	handled := make(chan string, 3)

	shop := &inbox.Processor{
		DB: groupcommit.New(pool, groupcommit.Options{}), Receiver: "shop",
		Handle: func(ctx context.Context, d *inbox.Delivery) error {
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `insert into sales (item) values ($1)`, string(d.Payload)); err != nil {
					return err
				}
				return d.Done(ctx, tx) // refused if another process has taken over
			})
			if err == nil {
				handled <- d.ID
			}
			return err // the message is tried again later
		},
	}
	broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	for _, order := range []string{"order-1", "order-1", "order-2"} {
		if err := broker.Publish("orders", message.NewMessage(order, []byte("a mug for "+order))); err != nil {
			panic(err)
		}
	}

	ended := make(chan error, 2)
	go func() { ended <- shop.Run(ctx) }()
	go func() { ended <- shop.Consume(ctx, inbox.Source{Subscriber: broker, Topic: "orders"}) }()
	fmt.Println(<-handled != "", <-handled != "")
	stop()
	fmt.Println(<-ended, <-ended, broker.Close())

	var sales int
	err := pool.QueryRow(context.Background(), `select count(*) from sales`).Scan(&sales)
	fmt.Println(sales, len(handled), err)
	// Output:
	// true true
	// <nil> <nil> <nil>
	// 2 0 <nil>
}

// A process that shares its work with others: each rings after its commits and is woken by
// the rings of all, so a message that one sends is handled at once by any.
func ExampleProcessor_wake() {
	pool, end := openPool() // a *pgxpool.Pool on a database with inbox.Schema and outbox.Schema
	defer end()
	ctx, stop := context.WithCancel(context.Background())

	const due = outbox.KindMessages << 1 // a kind of ours: a message of the inbox is due
	bell := outbox.NewDoorbell(outbox.DoorbellOptions{})
	db := groupcommit.New(pool, groupcommit.Options{Committed: func(b *pgx.Batch) {
		if outbox.HasMessages(b) {
			bell.Ring(outbox.KindMessages)
		}
		if inbox.MakesMessagesDue(b) {
			bell.Ring(due)
		}
	}})
	shop := &inbox.Processor{
		DB: db, Receiver: "shop",
		Wake: bell.Bell(due), Listening: bell.Listening,
		OnDeferred: func() { bell.Ring(due) }, // another process may have a free slot
		Handle: func(_ context.Context, d *inbox.Delivery) error {
			fmt.Println(string(d.Payload))
			stop()
			return nil
		},
	}
	subscriber := outbox.NewSubscriber(pool, "inbox", outbox.Options{
		Bell: bell.Bell(outbox.KindMessages), Listening: bell.Listening, Capacity: shop.Capacity,
	})

	b := &pgx.Batch{}
	if err := outbox.Append(b, outbox.Message{Topic: "orders", ID: "order-1", Payload: []byte("a mug")}); err != nil {
		panic(err)
	}
	if err := db.Commit(ctx, b); err != nil {
		panic(err)
	}
	ended := make(chan error, 2)
	go func() { ended <- shop.Run(ctx) }()
	go func() {
		ended <- shop.Consume(ctx, inbox.Source{Subscriber: subscriber, Topic: "orders", Split: outbox.Messages, Require: outbox.SameTimeline})
	}()
	bell.Run(ctx, pool) // until ctx ends
	fmt.Println(<-ended, <-ended, subscriber.Close())
	// Output:
	// a mug
	// <nil> <nil> <nil>
}

// A transport that gives a message another UUID when it is sent again: the id is the sender's
// key, else what the message is about. A key that is not valid is an error, never a reason for
// the other one.
func ExampleSource() {
	source := inbox.Source{Topic: "orders", Read: func(m *message.Message) (inbox.Message, error) {
		if given, ok := m.Metadata["idempotency-key"]; ok {
			id, err := idempotency.ParseKey([]string{given})
			return inbox.Message{ID: id}, err
		}
		var order struct {
			ID string `json:"order_id"`
		}
		if err := json.Unmarshal(m.Payload, &order); err != nil {
			return inbox.Message{}, err
		}
		key := idempotency.NaturalKey{Parts: []string{order.ID}, Operation: "charge", Version: 1}
		return inbox.Message{ID: key.String()}, key.Validate()
	}}
	for _, given := range []string{`"k-1"`, "no key", ""} {
		m := message.NewMessage(watermill.NewUUID(), []byte(`{"order_id":"o-1"}`))
		if given != "" {
			m.Metadata["idempotency-key"] = given
		}
		read, err := source.Read(m)
		fmt.Println(read.ID, err) // with an error it is stored as a dead letter
	}
	// Output:
	// k-1 <nil>
	//  the idempotency key is not valid: a space, ",", ";", " or \ needs quotes around the key
	// o-1:charge:v1 <nil>
}
