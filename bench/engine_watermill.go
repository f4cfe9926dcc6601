package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// engineByWatermill does the work in a handler of Watermill's SQL subscriber, as
// its getting-started guide has it: the message is published in the accepting
// transaction, and its handler runs until it acks. A subscriber delivers one
// message at a time, so more of them need more topics.
func watermillCarrier(ctx context.Context, c *carrier) (accepting, error) {
	pool, err := openPool(ctx, c.Database, peerConnections+2*c.Workers)
	if err != nil {
		return nil, err
	}
	db := stdlib.OpenDBFromPool(pool)
	log := watermill.NopLogger{} // it has lines about being stopped; what goes wrong is found in the count
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Second}, log)
	if err != nil {
		return nil, fmt.Errorf("make the router: %w", err)
	}
	for i := range c.Workers {
		subscriber, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
			ConsumerGroup: "work", SchemaAdapter: wsql.DefaultPostgreSQLSchema{}, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
			PollInterval: peerPoll, ResendInterval: peerPoll, RetryInterval: peerPoll, InitializeSchema: true,
		}, log)
		if err != nil {
			return nil, fmt.Errorf("make a subscriber: %w", err)
		}
		if err := subscriber.SubscribeInitialize(watermillTopic(i)); err != nil {
			return nil, fmt.Errorf("make Watermill's tables: %w", err)
		}
		router.AddConsumerHandler(watermillTopic(i), watermillTopic(i), subscriber, func(m *message.Message) error { //nolint:contextcheck // a message carries its own context
			return c.do(m.Context(), m.UUID, committer(pool))
		})
	}
	c.background.Go(func() error { return router.Run(ctx) })
	<-router.Running()
	return func(ctx context.Context, b *pgx.Batch, id string) error {
		return publish(ctx, db, b, id, c.Workers, log)
	}, nil
}

func watermillTopic(i int) string { return "work" + strconv.Itoa(i) }

// publish commits a charge and its message in one transaction. Watermill's
// publisher needs database/sql.
func publish(ctx context.Context, db *sql.DB, b *pgx.Batch, id string, topics int, log watermill.LoggerAdapter) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	for _, q := range b.QueuedQueries {
		if _, err := tx.ExecContext(ctx, q.SQL, q.Arguments...); err != nil {
			return fmt.Errorf("accept %s: %w", id, err)
		}
	}
	publisher, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: wsql.DefaultPostgreSQLSchema{}}, log)
	if err != nil {
		return fmt.Errorf("make a publisher: %w", err)
	}
	m := message.NewMessage(id, []byte(`{"id":"`+id+`"}`))
	if err := publisher.Publish(watermillTopic(rand.N(topics)), m); err != nil {
		return fmt.Errorf("publish %s: %w", id, err)
	}
	return tx.Commit()
}
