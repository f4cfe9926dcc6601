// Command broker receives orders from Kafka and from NATS JetStream, and ships each once. Every
// order is written three times to both brokers. A consumer of both is killed in the middle, and
// another one continues. In the end a consumer without offsets reads everything from the beginning.
//
// The brokers are in memory or in a temporary folder: franz-go's kfake, and a NATS server.
//
// It prints:
//
//	a consumer was killed after 4 shipments
//	12 orders, each 3 times from both brokers and read again from the beginning: 12 shipments
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/inbox"
	"golang.org/x/sync/errgroup"

	"github.com/payonce/payonce/examples/scaffold"
)

const (
	orders = 12
	times  = 3
	topic  = "orders"
	tables = `create table shipments (order_id text not null);`
)

func main() { scaffold.Main("example_broker", tables+inbox.Schema(), run, consume) }

// consume is a process that ships orders once, however often and from wherever they are
// delivered: "ROLE GROUP NATS KAFKA…". The victim stops in the middle of its fifth shipment. It
// prints what it has shipped, and that it has received everything.
func consume(ctx context.Context, pool *pgxpool.Pool) error {
	role := strings.Fields(scaffold.Role())
	fromNATS, err := subscribeNATS(role[2], role[1])
	if err != nil {
		return err
	}
	fromKafka, err := subscribeKafka(role[3:], role[1])
	if err != nil {
		return err
	}
	db := groupcommit.New(pool, groupcommit.Options{})
	var shipping, received atomic.Int64
	warehouse, err := inbox.New(inbox.Options{
		DB: db, Receiver: "warehouse",
		Handle: func(ctx context.Context, d *inbox.Delivery) error {
			b := &pgx.Batch{}
			b.Queue(`insert into shipments (order_id) values ($1)`, d.ID)
			if shipping.Add(1) > 4 && role[0] == "victim" {
				<-ctx.Done()
			}
			defer fmt.Println("shipped")
			return d.Commit(ctx, db, b)
		},
		OnReceive: func(r inbox.Reception) {
			if received.Add(int64(r.New+r.Duplicates)) >= 2*times*orders {
				fmt.Println("received everything")
			}
		},
	})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return warehouse.Run(ctx) })
	group.Go(func() error { return warehouse.Consume(ctx, fromNATS, topic, nil) })
	group.Go(func() error { return warehouse.Consume(ctx, fromKafka, topic, nil) })
	return group.Wait()
}

func run(ctx context.Context, pool *pgxpool.Pool) (err error) {
	folder, err := os.MkdirTemp("", "broker")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	natsURL, stopNATS, err := startNATS(folder)
	if err != nil {
		return err
	}
	defer stopNATS()
	kafka, stopKafka, err := startKafka()
	if err != nil {
		return err
	}
	defer stopKafka()
	toNATS, err := publisherNATS(natsURL)
	if err != nil {
		return err
	}
	toKafka, err := publisherKafka(kafka)
	if err != nil {
		return err
	}
	for _, broker := range []message.Publisher{toNATS, toKafka} {
		for n := range times * orders {
			err = errors.Join(err, broker.Publish(topic, message.NewMessage(fmt.Sprintf("order-%d", n%orders), []byte(`{}`))))
		}
		if err = errors.Join(err, broker.Close()); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		role, line string
		lines      int
	}{
		{"victim shop", "shipped", 4},    // then it is killed
		{"successor shop", "shipped", 8}, // it ships what the victim has acknowledged and not shipped, too
		{"reader lost", "received everything", 1},
	} {
		role := strings.Join(append([]string{c.role, natsURL}, kafka...), " ")
		if err := scaffold.KillAfter(ctx, role, c.lines, c.line); err != nil {
			return err
		}
	}
	var shipped int
	if err := pool.QueryRow(ctx, `select count(*) from shipments`).Scan(&shipped); err != nil {
		return err
	}
	fmt.Printf("a consumer was killed after 4 shipments\n%d orders, each %d times from both brokers and read again from the beginning: %d shipments\n", orders, times, shipped)
	if shipped != orders {
		return errors.New("not every order was shipped once")
	}
	return nil
}
