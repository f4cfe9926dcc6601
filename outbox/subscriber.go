package outbox

import (
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
)

// Options of a subscriber.
type Options struct {
	Bell <-chan struct{} // receives when messages were committed, see Doorbell; nil: the subscriber reads every 100 ms
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
func NewSubscriber(pool *pgxpool.Pool, o Options) message.Subscriber {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	s := &subscriber{db: sessions(pool), reader: &reader{Options: o, poll: 100 * time.Millisecond, deadline: ackDeadline, to: make(chan *message.Message, pageMessages)}}
	if o.Bell != nil {
		s.reader.poll = 2 * time.Second
	}
	s.reader.done, s.close = context.WithCancel(context.Background())
	s.Subscriber, _ = wsql.NewSubscriber(s.db, wsql.SubscriberConfig{
		BackoffManager: s.reader, SchemaAdapter: s.reader, OffsetsAdapter: s.reader,
	}, watermill.NopLogger{}) // HandleError logs; all that is checked is constant
	return s
}

// sessions connects as the pool does.
func sessions(pool *pgxpool.Pool) *sql.DB {
	c := pool.Config()
	options := []stdlib.OptionOpenDB{stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { // a ping would be a transaction for each poll
		return false
	})}
	if c.AfterConnect != nil {
		options = append(options, stdlib.OptionAfterConnect(c.AfterConnect))
	}
	if c.BeforeConnect != nil {
		options = append(options, stdlib.OptionBeforeConnect(c.BeforeConnect))
	}
	return stdlib.OpenDB(*c.ConnConfig, options...)
}

// subscriber is Watermill's, whose reader delivers the messages of a page itself.
type subscriber struct {
	*wsql.Subscriber

	reader     *reader
	db         *sql.DB // its own sessions
	close      context.CancelFunc
	subscribed atomic.Bool
}

var errSubscribed = errors.New("a subscriber has one topic")

// Subscribe implements message.Subscriber. It fails if the table cannot be read.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.subscribed.Swap(true) {
		return nil, errSubscribed
	}
	context.AfterFunc(ctx, s.end)
	s.reader.Log = s.reader.Log.With("topic", topic)
	pages, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		s.end()
		return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	go func() {
		defer close(s.reader.to)
		for page := range pages {
			page.Ack() // then Watermill runs AckMessageQuery
		}
	}()
	return s.reader.to, nil
}

// end lets the reader read no more. The reader itself ends its transaction.
func (s *subscriber) end() {
	s.close()
	_ = s.db.Close()
}

// Close implements message.Subscriber. It returns when what was subscribed before reads no
// more. The pool stays open.
func (s *subscriber) Close() error {
	s.end()
	return s.Subscriber.Close()
}
