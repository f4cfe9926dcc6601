// Command kafka receives orders from Kafka and ships each once. Every order is written
// three times. A consumer is killed in the middle, and another one of its group continues.
// In the end a consumer whose offsets are lost reads everything from the beginning.
//
// The broker is franz-go's kfake, which is in memory.
//
// It prints:
//
//	a consumer was killed after 4 shipments
//	12 orders written 3 times and read again from the beginning: 12 shipments
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"github.com/twmb/franz-go/pkg/kfake"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/examples/scaffold"
)

const (
	orders = 12
	tables = `create table shipments (order_id text not null);`
)

func main() { scaffold.Main("example_kafka", tables+inbox.Schema(), run, consume) }

// newSubscriber returns a member of a consumer group.
func newSubscriber(brokers []string, group string) (message.Subscriber, error) {
	config := kafka.DefaultSaramaSubscriberConfig()
	config.Consumer.Offsets.Initial = -2 // the oldest, where the group has no offset
	config.Consumer.Group.Session.Timeout = 2 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	return kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: brokers, ConsumerGroup: group, Unmarshaler: kafka.DefaultMarshaler{}, OverwriteSaramaConfig: config,
	}, watermill.NopLogger{})
}

// consume is a process that ships orders once, however often they are delivered: "GROUP
// BROKER…". The victim stops in the middle of its fifth shipment. It prints what it has
// shipped, or else what it has received.
func consume(ctx context.Context, pool *pgxpool.Pool) error {
	role := strings.Fields(scaffold.Role())
	subscriber, err := newSubscriber(role[2:], role[1])
	if err != nil {
		return err
	}
	db := groupcommit.New(pool, groupcommit.Options{})
	var shipping, received atomic.Int64
	o := inbox.Options{DB: db, Receiver: "warehouse"}
	o.Handle = func(ctx context.Context, d *inbox.Delivery) error {
		b := &pgx.Batch{}
		b.Queue(`insert into shipments (order_id) values ($1)`, d.ID)
		if shipping.Add(1) > 4 && role[0] == "victim" {
			<-ctx.Done()
		}
		defer fmt.Println("shipped")
		return d.Commit(ctx, db, b)
	}
	o.OnReceive = func(r inbox.Reception) { fmt.Println("received", received.Add(int64(r.New+r.Duplicates))) }
	warehouse, err := inbox.New(o)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return warehouse.Run(ctx) })
	group.Go(func() error {
		return warehouse.Consume(ctx, subscriber, "orders", nil)
	})
	return group.Wait()
}

func run(ctx context.Context, pool *pgxpool.Pool) error {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.SeedTopics(3, "orders"), kfake.GroupMinSessionTimeout(time.Second))
	if err != nil {
		return err
	}
	defer cluster.Close()
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: cluster.ListenAddrs(), Marshaler: kafka.DefaultMarshaler{}}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer func() { _ = publisher.Close() }()
	for n := range 3 * orders {
		if err := publisher.Publish("orders", message.NewMessage(fmt.Sprintf("order-%d", n%orders), []byte(`{}`))); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		role, line string
		lines      int
	}{
		{"victim shop", "shipped", 4},    // then it is killed
		{"successor shop", "shipped", 8}, // it ships what the victim has acknowledged and not shipped, too
		{"reader lost", fmt.Sprint("received ", 3*orders), 1},
	} {
		consumer, err := scaffold.Start(ctx, c.role+" "+strings.Join(cluster.ListenAddrs(), " "))
		if err != nil {
			return err
		}
		for n := 0; n < c.lines; {
			line, err := consumer.Line()
			if err != nil {
				return err
			}
			if line == c.line {
				n++
			}
		}
		consumer.Kill()
	}
	var shipped int
	if err := pool.QueryRow(ctx, `select count(*) from shipments`).Scan(&shipped); err != nil {
		return err
	}
	fmt.Printf("a consumer was killed after 4 shipments\n%d orders written 3 times and read again from the beginning: %d shipments\n", orders, shipped)
	if shipped != orders {
		return errors.New("not every order was shipped once")
	}
	return nil
}
