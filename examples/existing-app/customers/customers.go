// Package customers is the world around the shop, the same before and after: its tables,
// customers who send each order three times, and a broker that refuses every fourth
// message and delivers each of the others twice.
package customers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/examples/scaffold"
)

const (
	orders = 12
	tables = `
		create table items (sku text primary key, stock integer not null check (stock >= 0));
		insert into items values ('lamp', 100);
		create table orders (id uuid primary key, customer text not null, sku text not null references items);
		create table shipments (id bigint generated always as identity primary key, order_id uuid not null references orders);`
)

// Shop starts a shop on its tables: its receivers of messages, and its routes.
type Shop func(context.Context, *pgxpool.Pool, *Broker) (http.Handler, error)

// Main lets customers order at a shop, prints what became of it, and exits with 1 if that
// is not what the customers wanted.
func Main(schema string, start Shop) {
	scaffold.Main(schema, tables, func(ctx context.Context, pool *pgxpool.Pool) error { return run(ctx, pool, start) })
}

func run(ctx context.Context, pool *pgxpool.Pool, start Shop) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	broker := &Broker{GoChannel: gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})}
	handler, err := start(ctx, pool, broker)
	if err != nil {
		return err
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	for n := range orders {
		for range 3 {
			if err := order(ctx, server.URL, n); err != nil {
				return err
			}
		}
	}
	var placed, taken, shipped int
	for wait := true; wait; wait = shipped < placed {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d orders, %d shipments: %w", placed, shipped, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
		const count = `select (select count(*) from orders), (select 100 - stock from items), (select count(*) from shipments)`
		if err := pool.QueryRow(ctx, count).Scan(&placed, &taken, &shipped); err != nil {
			return err
		}
	}
	fmt.Printf("%d orders sent 3 times: %d orders, %d lamps taken from stock, %d shipments\n", orders, placed, taken, shipped)
	if placed != orders || taken != orders || shipped != orders {
		return errors.New("not what the customers wanted")
	}
	return nil
}

// order sends an order, and repeats it under its key while the shop answers with an error.
func order(ctx context.Context, url string, n int) error {
	for {
		a := scaffold.PostOrder(ctx, url, fmt.Sprintf(`"order-%d"`, n), fmt.Sprintf(`{"customer":"customer-%d","sku":"lamp"}`, n))
		switch {
		case a.Err != nil || a.Status == http.StatusCreated:
			return a.Err
		case a.Status < 500:
			return fmt.Errorf("order %d: %d", n, a.Status)
		}
	}
}

// Broker is a broker as brokers are: Publish fails sometimes, and messages come twice.
type Broker struct {
	*gochannel.GoChannel
	calls atomic.Int64
}

// Publish implements message.Publisher.
func (b *Broker) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if b.calls.Add(1)%4 == 0 {
			return errors.New("the broker is away")
		}
		for range 2 {
			if err := b.GoChannel.Publish(topic, m.Copy()); err != nil {
				return err
			}
		}
	}
	return nil
}
