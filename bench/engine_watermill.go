package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
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
// transaction, and its handler runs until it acks. A subscriber hands over one
// message at a time, so more of them need more topics.
func engineByWatermill(ctx context.Context, t task) (w window, err error) {
	pool, err := openPool(ctx, t.Database, peerConnections+int32(2*t.Workers)) //nolint:gosec // a few
	if err != nil {
		return w, err
	}
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	log := watermill.NopLogger{} // it has lines about being stopped; what goes wrong is found in the count
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Second}, log)
	if err != nil {
		return w, fmt.Errorf("make the router: %w", err)
	}
	l := newLoop(t.InFlight)
	work := newWork(t.External, t.Workers)
	for i := range t.Workers {
		subscriber, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
			ConsumerGroup: "work", SchemaAdapter: watermillSchema(), OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
			PollInterval: peerPoll, ResendInterval: peerPoll, RetryInterval: peerPoll, InitializeSchema: true,
		}, log)
		if err != nil {
			return w, fmt.Errorf("make a subscriber: %w", err)
		}
		if err := subscriber.SubscribeInitialize(watermillTopic(i)); err != nil {
			return w, fmt.Errorf("make Watermill's tables: %w", err)
		}
		router.AddConsumerHandler(watermillTopic(i), watermillTopic(i), subscriber, func(m *message.Message) error { //nolint:contextcheck // a message carries its own context
			if err := work.do(m.Context(), m.UUID, committer(pool), nil); err != nil {
				return err
			}
			l.end(m.UUID)
			return nil
		})
	}
	ended := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	defer stop()
	go func() { ended <- router.Run(running) }()
	<-router.Running()
	w, err = pump(ctx, t, l, func(ctx context.Context, id string) error { return publish(ctx, db, id, t.Workers, log) })
	stop()
	return w, errors.Join(err, <-ended)
}

func watermillSchema() wsql.SchemaAdapter { return wsql.DefaultPostgreSQLSchema{} }

func watermillTopic(i int) string { return "work" + strconv.Itoa(i) }

// publish commits a charge and its message in one transaction. Watermill's
// publisher needs database/sql.
func publish(ctx context.Context, db *sql.DB, id string, topics int, log watermill.LoggerAdapter) error {
	b := &pgx.Batch{}
	accept(b, id, time.Now())
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
	publisher, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: watermillSchema()}, log)
	if err != nil {
		return fmt.Errorf("make a publisher: %w", err)
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(id)) // never fails
	m := message.NewMessage(id, []byte(`{"id":"`+id+`"}`))
	if err := publisher.Publish(watermillTopic(int(hash.Sum32())%topics), m); err != nil {
		return fmt.Errorf("publish %s: %w", id, err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit %s: %w", id, err)
	}
	return nil
}
