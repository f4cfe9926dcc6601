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
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/payonce/payonce/internal/loop"
)

// Timing of a subscriber. A poll that finds nothing reads one index entry and writes nothing.
const (
	slowPoll      = 10 * time.Second       // while the bell receives
	fastPoll      = 50 * time.Millisecond  // while it does not
	minRetryRead  = time.Millisecond       // after a message was committed that cannot be read yet
	maxRetryRead  = 100 * time.Millisecond // the same, after several reads
	retryInterval = 100 * time.Millisecond
	ackDeadline   = 30 * time.Second
)

// Options of a subscriber or forwarder. The zero value reads every 50 ms.
type Options struct {
	// Bell receives when messages were committed, see Doorbell.Bell. The outbox is read when it
	// does, and every ten seconds.
	Bell <-chan struct{}
	// Listening reports whether Bell rings for the commits of all processes, see
	// Doorbell.Listening. While it does not, the outbox is read every 50 ms.
	Listening func() bool
	// Capacity waits until messages can be taken, and returns how many; 0 when ctx
	// has ended. 500 where it is nil, which is also the most that a page holds.
	Capacity func(ctx context.Context) int
	// Log receives the first failure of several, one line a minute while they go on, and
	// one when they have ended. slog.Default() where nil.
	Log *slog.Logger
}

// NewSubscriber is Watermill's SQL subscriber over this package's tables, for one topic. Each
// message that it delivers is a page of the outbox, see Messages: the receiver acknowledges
// it when all that it holds is durable. A page that is refused (Nack), or not acknowledged in
// 30 seconds, is redelivered with half of its messages, down to one: so a message that cannot
// be received holds up those behind it and none before it. Of a topic and group one
// subscriber reads at a time: the others wait on the group's offset row, and go on when it dies.
//
// The subscriber's transaction is open while the page is handled, and commits the group's
// offset when it is acknowledged. Meanwhile no reader of any topic sees newer messages, so a
// receiver stores the page in this database and does nothing else, in a transaction that begins
// with SameTimeline. Where it needs the network, use Forward. A subscriber has a connection of
// its own, made as the pool makes them: the receiver needs connections of the pool meanwhile.
//
// Subscribe fails while the database is away, or lacks the tables; a subscriber that reads
// retries until it is back.
//
// If we die here: the offset has not moved, and the page is redelivered.
func NewSubscriber(pool *pgxpool.Pool, group string, o Options) message.Subscriber {
	db, deadline := sessions(pool), ackDeadline
	s := &subscriber{db: db, reader: newReader(group, o)}
	s.reader.done, s.close = context.WithCancel(context.Background())
	// All that it checks is constant.
	s.Subscriber, s.refused = wsql.NewSubscriber(db, wsql.SubscriberConfig{
		ConsumerGroup: group, AckDeadline: &deadline, ResendInterval: retryInterval,
		BackoffManager: s.reader, SchemaAdapter: s.reader, OffsetsAdapter: s.reader,
	}, bounded{Logger(o.Log), s.reader})
	if pool == nil {
		s.refused = errNoPool
	}
	return s
}

// setTimeouts prepares a session. One subscriber of a group waits for the lock of another, for
// as long as that reads. It asks anew after a minute, so a connection that is gone is noticed.
const setTimeouts = `
select set_config('lock_timeout', '0', false),
       set_config('statement_timeout', '60000', false)`

// sessions connects as the pool does.
func sessions(pool *pgxpool.Pool) *sql.DB {
	if pool == nil {
		return stdlib.OpenDB(pgx.ConnConfig{}) // which nothing uses
	}
	c := pool.Config()
	options := []stdlib.OptionOpenDB{stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		if c.AfterConnect != nil {
			if err := c.AfterConnect(ctx, conn); err != nil {
				return err
			}
		}
		_, err := conn.Exec(ctx, setTimeouts)
		return err
	}), stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { // a ping would be a transaction for each poll
		return false
	})}
	if c.BeforeConnect != nil {
		options = append(options, stdlib.OptionBeforeConnect(c.BeforeConnect))
	}
	db := stdlib.OpenDB(*c.ConnConfig, options...)
	db.SetMaxOpenConns(1)
	return db
}

// subscriber is Watermill's, which ends while its reader waits too.
type subscriber struct {
	*wsql.Subscriber

	db         *sql.DB // its own sessions
	reader     *reader
	close      context.CancelFunc
	refused    error // of Subscribe
	subscribed atomic.Bool
}

var errSubscribed = errors.New("a subscriber has one topic")

// Subscribe implements message.Subscriber.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.subscribed.Swap(true) {
		return nil, errSubscribed
	}
	s.reader.caller, s.reader.log = ctx, s.reader.log.With("topic", topic)
	context.AfterFunc(ctx, s.end)
	read, err := (<-chan *message.Message)(nil), s.refused
	if err == nil {
		read, err = s.Subscriber.Subscribe(ctx, topic)
	}
	if err != nil {
		s.end()
		return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	delivered := make(chan *message.Message)
	go func() { //nolint:contextcheck // a message carries its own context
		defer close(delivered)
		for page := range read {
			s.reader.deliver(page, delivered)
		}
	}()
	return delivered, nil
}

// deliver sends a page to the receiver and waits until it is acknowledged or refused. Watermill
// would redeliver a refused page inside its open transaction, which holds back the readers
// of all topics, until the deadline. So it gets an acknowledgment that moves no offset.
func (r *reader) deliver(page *message.Message, to chan<- *message.Message) {
	ctx := page.Context()
	delivery := page.Copy()
	delivery.SetContext(ctx)
	select {
	case to <- delivery:
	case <-ctx.Done():
		return
	}
	select {
	case <-delivery.Acked():
	case <-delivery.Nacked():
		r.refused.Store(true)
	case <-ctx.Done():
		return
	}
	page.Ack()
}

// end lets the reader read no more. The reader itself ends its transaction.
func (s *subscriber) end() {
	s.close()
	_ = s.db.Close()
}

// Close implements message.Subscriber. It returns when what was subscribed before
// reads no more. The pool stays open.
func (s *subscriber) Close() error {
	s.end()
	return s.Subscriber.Close()
}

// reader lets Watermill read the outbox table, says when, and keeps all groups of all topics
// in outbox_offsets. Append alone inserts messages, Schema alone makes tables.
type reader struct {
	Options

	done     context.Context // of the subscriber; Watermill passes none
	caller   context.Context // of Subscribe; done ends a little later
	log      *slog.Logger
	failures failures

	limit, maxPage       int           // messages of the next page; of any page, see HandleError
	read                 int           // messages of the last page
	more                 bool          // there are more that can be read
	refused              atomic.Bool   // the last page was
	blockedByTransaction bool          // there are more, which cannot be read before an older transaction ends
	retryReadAfter       time.Duration // until the next poll for them
}

func newReader(group string, o Options) *reader {
	r := &reader{
		Options: o, caller: context.Background(), limit: pageMessages, maxPage: pageMessages, retryReadAfter: minRetryRead,
		log: logged(o.Log).With("consumer_group", group),
	}
	if o.Capacity == nil {
		r.Capacity = func(context.Context) int { return pageMessages }
	} else {
		r.limit = 1 // what Capacity allows is asked for when no transaction is open
	}
	if o.Listening == nil {
		r.Listening = func() bool { return false }
	}
	return r
}

var errReadOnly = errors.New("messages enter the outbox by outbox.Append, in the batch that causes them")

// InsertQuery refuses.
func (*reader) InsertQuery(string, message.Messages) (wsql.Query, error) {
	return wsql.Query{}, errReadOnly
}

// SchemaInitializingQueries are none.
func (*reader) SchemaInitializingQueries(string) []wsql.Query { return nil }

// SubscribeIsolationLevel: under Watermill's default, repeatable read, a subscriber that
// waited for the offset row would be refused instead of reading the newer offset.
func (*reader) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelReadCommitted }

// HandleError implements Watermill's BackoffManager. It is called after each poll, when its
// transaction has ended. It waits until the next poll is due, and returns 0.
func (r *reader) HandleError(log watermill.LoggerAdapter, nothing bool, err error) time.Duration {
	read, more, refused := r.read, r.more, r.refused.Swap(false)
	r.read, r.more = 0, false
	if err != nil {
		log.Error("delivery from the outbox failed and is retried", err, nil)
	}
	if n := r.failures.ended(err == nil && !refused); n > 0 {
		r.log.Info("delivery from the outbox works again", "failures", n)
	}
	switch {
	case err != nil || refused || read > 0 && nothing:
		r.maxPage = max(1, read/2)
		loop.Pause(r.done, retryInterval, nil)
	case more && read > 0: // else Capacity has returned 0
		r.maxPage = min(pageMessages, 2*r.maxPage)
	default:
		if read > 0 {
			r.maxPage, r.retryReadAfter = min(pageMessages, 2*r.maxPage), minRetryRead
		}
		loop.Pause(r.done, r.pause(), r.Bell)
	}
	r.limit = min(r.maxPage, r.Capacity(r.done))
	return 0
}

// pause is how long to wait for the bell.
func (r *reader) pause() time.Duration {
	if r.blockedByTransaction {
		wait := r.retryReadAfter
		r.retryReadAfter = min(2*wait, maxRetryRead)
		return wait
	}
	r.retryReadAfter = minRetryRead
	if r.Listening() {
		return slowPoll
	}
	return fastPoll
}

const insertOffset = `
insert into outbox_offsets
       (topic, consumer_group, transaction_id, "offset")
values ($1, $2, '0', 0)
on conflict do nothing`

// BeforeSubscribingQueries makes the row that the active subscriber locks.
func (r *reader) BeforeSubscribingQueries(topic, group string) []wsql.Query {
	return []wsql.Query{
		{Query: insertOffset, Args: []any{topic, group}},
	}
}

// updateOffset moves the offset of a group. The commit is not flushed: a crash of the server
// that loses it costs a redelivery. Nothing is deleted above an offset that is not durable:
// DeleteExpired's commit is flushed, and all before it.
const updateOffset = `
update outbox_offsets
   set transaction_id = $3::text::xid8,
       "offset" = $4
 where topic = $1
   and consumer_group = $2
   and (transaction_id, "offset")::text = $5
   and set_config('synchronous_commit', 'off', true) = 'off'`

// leaveOffset is what a refused page runs in place of updateOffset: its commit is not waited
// for either.
const leaveOffset = `
select set_config('synchronous_commit', 'off', true)`

// AckMessageQuery moves the offset behind a page that was acknowledged.
func (r *reader) AckMessageQuery(topic string, row wsql.Row, group string) wsql.Query {
	if r.refused.Load() {
		return wsql.Query{Query: leaveOffset}
	}
	return wsql.Query{Query: updateOffset, Args: []any{topic, group, row.ExtraData[transactionID], row.Offset, row.ExtraData[previousPosition]}}
}

// NextOffsetQuery is empty: the page's own query reads the offset.
func (*reader) NextOffsetQuery(string, string) wsql.Query { return wsql.Query{} }

// ConsumedMessageQuery is empty: nothing is written between a message and its ack.
func (*reader) ConsumedMessageQuery(string, wsql.Row, string, []byte) wsql.Query {
	return wsql.Query{}
}
