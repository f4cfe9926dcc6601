package outbox_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/testdb"
	"github.com/payonce/payonce/outbox"
)

// A message waits in the commit that causes it: refused with it, or delivered.
func Example() {
	db, end := testdb.Example()
	defer end()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	register := func(merchant, messageID string) error {
		b := &pgx.Batch{}
		b.Queue(`insert into merchants (merchant_id) values ($1)`, merchant)
		err := outbox.Append(b, outbox.Message{
			Topic: "merchants", ID: messageID, Type: "merchant.registered", OrderingKey: merchant, Payload: []byte(merchant),
		})
		if err != nil {
			return err
		}
		return db.Commit(ctx, b)
	}
	fmt.Println(register("acme", "m1"))
	fmt.Println(groupcommit.Constraint(register("acme", "m2")))
	fmt.Println(register("globex", "m3"))

	subscriber := outbox.NewSubscriber(db.Pool(), "mailer", outbox.Options{})
	defer func() { _ = subscriber.Close() }()
	pages, err := subscriber.Subscribe(ctx, "merchants")
	if err != nil {
		panic(err)
	}
	page := <-pages
	messages, err := outbox.Messages(page)
	if err != nil {
		panic(err)
	}
	for _, m := range messages {
		fmt.Println(m.UUID, m.Metadata.Get(outbox.MetadataType), string(m.Payload))
	}
	page.Ack()
	// Output:
	// <nil>
	// merchants_pkey
	// <nil>
	// m1 merchant.registered acme
	// m3 merchant.registered globex
}
