package inbox_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
)

// A broker delivers two messages, one of them twice. Each takes effect once: the insert and
// the end of the message are one transaction.
func Example() {
	pool, end := openPool() // a *pgxpool.Pool on a database with inbox.Schema and a table sales
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	handled := make(chan string, 3)

	shop, err := inbox.New(inbox.Options{
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
			return err // the message is retried later
		},
	})
	if err != nil {
		panic(err)
	}
	broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	for _, order := range []string{"order-1", "order-1", "order-2"} {
		if err := broker.Publish("orders", message.NewMessage(order, []byte("a mug for "+order))); err != nil {
			panic(err)
		}
	}

	ended := make(chan error, 2)
	go func() { ended <- shop.Run(ctx) }()
	go func() { ended <- shop.Consume(ctx, broker, "orders", nil) }()
	fmt.Println(<-handled != "", <-handled != "")
	stop()
	fmt.Println(<-ended, <-ended, broker.Close())

	var sales int
	err = pool.QueryRow(context.Background(), `select count(*) from sales`).Scan(&sales)
	fmt.Println(sales, len(handled), err)
	// Output:
	// true true
	// <nil> <nil> <nil>
	// 2 0 <nil>
}

// A transaction of the same database sends a message without a broker, and wakes the receiver
// after its commit. Without the wake the message is found within a second.
func ExampleAppend() {
	pool, end := openPool()
	defer end()
	ctx, stop := context.WithCancel(context.Background())

	wake := make(chan struct{}, 1)
	db := groupcommit.New(pool, groupcommit.Options{
		Writes:    groupcommit.NewStatements(inbox.Writes()...),
		Committed: func([]string) { wake <- struct{}{} }, // "mails"
	})
	mails, err := inbox.New(inbox.Options{DB: db, Receiver: "mails", Wake: wake, Handle: func(_ context.Context, d *inbox.Delivery) error {
		fmt.Println(string(d.Payload))
		stop()
		return nil
	}})
	if err != nil {
		panic(err)
	}
	b := &pgx.Batch{}
	b.Queue(`insert into sales (item) values ('a mug')`)
	inbox.Append(b, "mails", inbox.Message{ID: "sale-1", OrderingKey: "ada", Payload: []byte("Thank you, Ada.")})
	if err := db.Commit(ctx, b); err != nil {
		panic(err)
	}
	fmt.Println(mails.Run(ctx))
	// Output:
	// Thank you, Ada.
	// <nil>
}
