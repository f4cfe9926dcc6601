package inbox_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/inbox"
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

// A transport that gives a message another UUID when it is sent again: what the message is
// about is its id.
func ExampleIDBy() {
	source := inbox.Source{Topic: "orders", Read: inbox.IDBy(idempotency.FirstOf(
		idempotency.FromHeader("idempotency-key"),
		idempotency.FromMembers("charge", 1, "order_id"),
	))}
	for _, payload := range []string{`{"order_id":"o-1"}`, `{"amount":5}`} {
		m, err := source.Read(message.NewMessage(watermill.NewUUID(), []byte(payload)))
		fmt.Println(m.ID, err) // with an error it is stored as a dead letter
	}
	// Output:
	// o-1:charge:v1 <nil>
	//  the idempotency key is missing
}
