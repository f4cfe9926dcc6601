package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/payonce/payonce/internal/loop"
)

// Options of a subscriber.
type Options struct {
	Bell <-chan struct{} // receives when messages were committed, see package doorbell; nil: the subscriber reads every 100 ms
	Log  *slog.Logger    // slog.Default() where nil
}

// NewSubscriber returns Watermill's SQL subscriber over the outbox, for one topic.
//
// The subscriber delivers the messages of a page, at most 500 or 1 MiB, without waiting for
// each other's acknowledgment, and deletes those that were acknowledged within 30 seconds, up
// to the first that was not. That message and those behind it are delivered again.
//
// One subscriber at a time reads a topic: it locks the topic's row in outbox_topics in the
// transaction that is open while the page is handled, in a connection of its own, made as the
// pool makes them. Two readers, as after a network fault, cost repetitions.
//
// If we die here: what was not deleted is delivered again.
//
//nolint:contextcheck,nolintlint // for its callers: it ends with the context of Subscribe, or by Close
func NewSubscriber(pool *pgxpool.Pool, o Options) message.Subscriber {
	o.Log = cmp.Or(o.Log, slog.Default())
	config := pool.Config()
	config.MinConns, config.MinIdleConns, config.MaxConns = 0, 0, 1
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // it would be a transaction for each poll
	own, _ := pgxpool.NewWithConfig(context.Background(), config)                             // a pool has it, so it is valid
	s := &subscriber{Options: o, sessions: own, db: stdlib.OpenDBFromPool(own), poll: 100 * time.Millisecond, deadline: ackDeadline, out: make(chan *message.Message, pageMessages)}
	if o.Bell != nil {
		s.poll = 2 * time.Second
	}
	s.life, s.cancel = context.WithCancel(context.Background())
	s.watermill, _ = wsql.NewSubscriber(s.db, wsql.SubscriberConfig{
		BackoffManager: s, SchemaAdapter: s, OffsetsAdapter: s,
	}, watermill.NopLogger{}) // HandleError logs; all that is checked is constant
	return s
}

// subscriber adapts Watermill's to the outbox table. Watermill calls its methods in reader.go from one
// goroutine, for each poll in this order: SelectQuery in a new transaction; UnmarshalMessage, if the page has
// a row; AckMessageQuery, if that returned a message; then it ends the transaction, and calls HandleError.
type subscriber struct {
	Options

	watermill  *wsql.Subscriber
	sessions   *pgxpool.Pool         // its own
	db         *sql.DB               // over them
	deadline   time.Duration         // of acknowledgments
	poll       time.Duration         // between two reads of an empty topic
	life       context.Context       // Watermill passes none
	cancel     context.CancelFunc    // ends life
	out        chan *message.Message // holds a page
	subscribed atomic.Bool
	failed     bool // whether the last poll failed

	ids   []int64 // of the page
	bytes int     // of the page
	acked int     // length of the part of ids that was acknowledged, from the first

	// Between two full scans a page is read from a little before the last one, so that the reader
	// does not read over the remains of what was deleted. A message with a smaller id, of a
	// transaction that commits later, is found by the next full scan.
	last     int64
	scan     bool // this page is one
	nextScan time.Time
}

var (
	errSubscribed = errors.New("a subscriber has one topic")
	errEnded      = errors.New("the subscription has ended")
)

// Subscribe implements message.Subscriber. It fails if the table cannot be read.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.subscribed.Swap(true) {
		return nil, errSubscribed
	}
	context.AfterFunc(ctx, s.end)
	s.Log = s.Log.With("topic", topic)
	pages, err := s.watermill.Subscribe(ctx, topic)
	if err != nil {
		s.end()
		return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	go func() {
		defer close(s.out)
		for page := range pages {
			page.Ack() // then Watermill runs AckMessageQuery
		}
	}()
	return s.out, nil
}

// end lets the reader read no more. The reader itself ends its transaction.
func (s *subscriber) end() {
	s.cancel()
	_ = s.db.Close()
	s.sessions.Close()
}

// Close implements message.Subscriber. It returns when what was subscribed before reads no
// more. The pool stays open.
func (s *subscriber) Close() error {
	s.end()
	return s.watermill.Close()
}

// Forward publishes the messages of a topic, one after the other in their order and each under
// its own id, until ctx ends; then it returns nil. It acknowledges a message when Publish has
// returned nil for it, so a broker receives each at least once. from may be any subscriber.
//
// What Publish refuses is retried, and the first failure of several is logged to slog.Default().
//
// Publish ends when the context of its message does, which is delivered again then.
func Forward(ctx context.Context, from message.Subscriber, topic string, to message.Publisher) error {
	messages, err := from.Subscribe(ctx, topic)
	if err != nil {
		return err
	}
	failing := false
	for m := range messages {
		err := loop.Safely(func() error { return to.Publish(topic, m) })
		if err == nil {
			m.Ack()
			failing = false
			continue
		}
		if !failing {
			slog.ErrorContext(ctx, "publish failed and is retried", "topic", topic, "message_id", m.UUID, "error", err) //nolint:sloglint // the program's
		}
		failing = true
		m.Nack()
		loop.Pause(ctx, afterFailure, nil)
	}
	if ctx.Err() == nil {
		return errEnded
	}
	return nil
}
