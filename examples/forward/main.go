// Command forward sends the messages of 8 committed orders to Kafka, and none of 4 that are
// rolled back. The forwarder is killed after Kafka has stored some messages and before that
// is noted. Another system drops what comes twice, as in the example kafka.
//
// It prints:
//
//	the forwarder was killed when Kafka had 5 messages
//	Kafka has 13 messages: those of the 8 orders, 5 of them twice, each customer's in order
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/payonce/payonce/outbox"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/payonce/payonce/examples/scaffold"
)

const tables = `create table orders (number integer primary key, customer text not null);`

var errNoMoney = errors.New("the customer has no money")

// order stores an order, and queues the message about it in the same transaction. Every
// third order is rolled back.
func order(ctx context.Context, pool *pgxpool.Pool, number int) error {
	customer := fmt.Sprintf("customer-%d", number%2)
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into orders (number, customer) values ($1, $2)`, number, customer); err != nil {
			return err
		}
		err := outbox.Send(ctx, tx, outbox.Message{
			Topic: "orders", ID: fmt.Sprintf("order-%02d", number), Type: "order.placed", OrderingKey: customer, Payload: []byte(`{}`),
		})
		if err == nil && number%3 == 0 {
			err = errNoMoney
		}
		return err
	})
}

// byOrderingKey gives the messages of a customer one partition, which keeps their order.
func byOrderingKey() kafka.MarshalerUnmarshaler {
	return kafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) {
		return m.Metadata.Get(outbox.MetadataOrderingKey), nil
	})
}

// forward is a process that forwards: "ROLE BROKER…".
func forward(ctx context.Context, pool *pgxpool.Pool) error {
	role := strings.Fields(scaffold.Role())
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: role[1:], Marshaler: byOrderingKey()}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	if role[0] == "victim" {
		return outbox.Forward(ctx, outbox.NewSubscriber(pool, outbox.Options{}), "orders", &victim{Publisher: publisher})
	}
	return outbox.Forward(ctx, outbox.NewSubscriber(pool, outbox.Options{}), "orders", publisher)
}

// victim stops after it has published five messages.
type victim struct {
	message.Publisher

	published int
}

func (v *victim) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if err := v.Publisher.Publish(topic, m); err != nil {
			return err
		}
		if v.published++; v.published == 5 {
			fmt.Println("published")
			select {}
		}
	}
	return nil
}

func main() { scaffold.Main("example_forward", tables+outbox.Schema(), run, forward) }

func run(ctx context.Context, pool *pgxpool.Pool) error {
	for n := range 12 {
		if err := order(ctx, pool, n); err != nil && !errors.Is(err, errNoMoney) {
			return err
		}
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(3, "orders"))
	if err != nil {
		return err
	}
	defer cluster.Close()
	for _, role := range []string{"victim", "successor"} {
		forwarder, err := scaffold.Start(ctx, role+" "+strings.Join(cluster.ListenAddrs(), " "))
		if err != nil {
			return err
		}
		defer forwarder.Kill()
		if role == "victim" {
			_, _ = forwarder.Line() // published
			forwarder.Kill()
			fmt.Println("the forwarder was killed when Kafka had 5 messages")
		}
	}
	return check(ctx, cluster.ListenAddrs())
}

// check reads the messages from Kafka.
func check(ctx context.Context, brokers []string) error {
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = -2 // the oldest
	subscriber, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: brokers, ConsumerGroup: "check", Unmarshaler: byOrderingKey(), OverwriteSaramaConfig: config,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer func() { _ = subscriber.Close() }()
	messages, err := subscriber.Subscribe(ctx, "orders")
	if err != nil {
		return err
	}
	copies, last, all := map[string]int{}, map[string]string{}, 0
	for ; len(copies) < 8 || all < 13; all++ {
		m, ok := <-messages
		if !ok {
			return fmt.Errorf("read %v: %w", copies, context.Cause(ctx))
		}
		customer := m.Metadata.Get(outbox.MetadataOrderingKey)
		if copies[m.UUID]++; copies[m.UUID] == 1 { // the first copies are in order
			if m.UUID < last[customer] {
				return fmt.Errorf("%s came after %s", m.UUID, last[customer])
			}
			last[customer] = m.UUID
		}
		m.Ack()
	}
	fmt.Printf("Kafka has %d messages: those of the %d orders, %d of them twice, each customer's in order\n", all, len(copies), all-len(copies))
	return nil
}
