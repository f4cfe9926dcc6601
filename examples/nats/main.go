// Command nats receives orders from NATS JetStream and ships each once. Every order is
// published three times. The node that leads the stream is killed in between. In the end a
// new consumer delivers the whole stream again.
//
// It prints:
//
//	the leader of the stream was killed after 12 messages
//	12 orders published 3 times and delivered twice: 12 shipments
package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wants "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/examples/scaffold"
)

const (
	orders = 12
	tables = `create table shipments (order_id text not null);`
)

// newSubscriber makes a durable consumer of the orders, and returns a subscriber of it. A
// subscriber that made its own consumer would fail while the cluster elects a leader.
func newSubscriber(ctx context.Context, c *cluster, name string) (message.Subscriber, error) {
	consumer := &nats.ConsumerConfig{
		Durable: name, DeliverGroup: name, DeliverSubject: nats.NewInbox(),
		DeliverPolicy: nats.DeliverAllPolicy, AckPolicy: nats.AckExplicitPolicy, AckWait: 2 * time.Second,
	}
	if err := retry(ctx, func() error { _, err := c.js.AddConsumer("orders", consumer); return err }); err != nil {
		return nil, err
	}
	return wants.NewSubscriberWithNatsConn(c.conn, wants.SubscriberSubscriptionConfig{
		QueueGroupPrefix: name,
		// Without ManualAck the client acknowledges even what the subscriber gave up.
		JetStream: wants.JetStreamConfig{DurablePrefix: name, SubscribeOptions: []nats.SubOpt{nats.ManualAck(), nats.Bind("orders", name)}},
	}, watermill.NopLogger{})
}

// lasting is a subscriber whose subscriptions outlive their context. Where one ends while a
// message arrives, watermill-nats v2.1.3 may send on the channel that it has just closed.
type lasting struct{ message.Subscriber }

// Subscribe subscribes until the connection is closed.
func (l lasting) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return l.Subscriber.Subscribe(context.WithoutCancel(ctx), topic)
}

// newWarehouse ships an order once, however often it is delivered.
func newWarehouse(pool *pgxpool.Pool, received *atomic.Int64) (*inbox.Processor, error) {
	db := groupcommit.New(pool, groupcommit.Options{})
	return inbox.New(inbox.Options{
		DB: db, Receiver: "warehouse",
		Handle: func(ctx context.Context, d *inbox.Delivery) error {
			b := &pgx.Batch{}
			b.Queue(`insert into shipments (order_id) values ($1)`, d.ID)
			return d.Commit(ctx, db, b)
		},
		OnReceive: func(r inbox.Reception) { received.Add(int64(r.New + r.Duplicates)) },
	})
}

func main() { scaffold.Main("example_nats", tables+inbox.Schema(), run, node) }

func run(ctx context.Context, pool *pgxpool.Pool) error {
	c := &cluster{}
	defer c.stop()
	if err := c.start(ctx); err != nil {
		return err
	}
	var received atomic.Int64
	warehouse, err := newWarehouse(pool, &received)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	group, working := errgroup.WithContext(ctx)
	group.Go(func() error { return warehouse.Run(working) })
	consume := func(consumer string) error {
		subscriber, err := newSubscriber(working, c, consumer)
		if err == nil {
			group.Go(func() error {
				return warehouse.Consume(working, lasting{subscriber}, "orders", nil)
			})
		}
		return err
	}
	if err := consume("first"); err != nil {
		return err
	}
	for n := range 3 * orders {
		if n == orders {
			if err := c.killLeader(working); err != nil {
				return err
			}
			fmt.Printf("the leader of the stream was killed after %d messages\n", n)
		}
		if err := c.publish(working, fmt.Sprintf("order-%d", n%orders)); err != nil {
			return err
		}
	}
	if err := consume("second"); err != nil {
		return err
	}
	stored, err := c.stored(working)
	if err != nil {
		return err
	}
	shipped := 0
	for received.Load() < 2*stored || shipped < orders {
		if err := pause(working); err != nil {
			return fmt.Errorf("%d deliveries of %d messages, %d shipments: %w", received.Load(), stored, shipped, err)
		}
		if err := pool.QueryRow(ctx, `select count(*) from shipments`).Scan(&shipped); err != nil {
			return err
		}
	}
	end()
	fmt.Printf("%d orders published 3 times and delivered twice: %d shipments\n", orders, shipped)
	if shipped != orders {
		return errors.New("not every order was shipped once")
	}
	return group.Wait()
}
