package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
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

const (
	pageMessages = 500
	pageBytes    = 1 << 20 // of payloads; a longer message is a page of its own
	ackDeadline  = 30 * time.Second
	afterFailure = 100 * time.Millisecond
	logEvery     = time.Minute

	fullScan      = time.Second // between two pages that are read from the beginning
	fullScanShare = 20          // of the time, at most one part is for them
)

// Options of a subscriber. The zero value reads every 100 ms.
type Options struct {
	Bell <-chan struct{} // receives when messages were committed, see Doorbell
	Poll time.Duration   // between two reads of an empty topic; 100 ms, or 2 s with a Bell
	Log  *slog.Logger    // slog.Default() where nil
}

// NewSubscriber is Watermill's SQL subscriber over the outbox, for one topic.
//
// It delivers the messages of a page, at most 500 or 1 MiB, without waiting for each other's
// acknowledgment, and deletes those that were acknowledged within 30 seconds, up to the first
// that was not. That one and those behind it are delivered again.
//
// Of a topic one subscriber reads at a time: it holds an advisory lock in the transaction that
// is open while a page is handled, in a connection of its own, made as the pool makes them. Two
// readers, as after a network fault, cost repetitions.
//
// If we die here: what was not deleted is delivered again.
func NewSubscriber(pool *pgxpool.Pool, o Options) message.Subscriber {
	if o.Poll == 0 {
		o.Poll = 100 * time.Millisecond
		if o.Bell != nil {
			o.Poll = 2 * time.Second
		}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	r := &reader{Options: o}
	s := &subscriber{reader: r, db: sessions(pool)}
	r.done, s.close = context.WithCancel(context.Background())
	deadline := 2 * ackDeadline // deliver has its own, which is shorter
	s.Subscriber, _ = wsql.NewSubscriber(s.db, wsql.SubscriberConfig{
		AckDeadline: &deadline, BackoffManager: r, SchemaAdapter: r, OffsetsAdapter: r,
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
	db := stdlib.OpenDB(*c.ConnConfig, options...)
	db.SetMaxOpenConns(1)
	return db
}

// subscriber is Watermill's, which ends while its reader waits too, and gives the messages of
// a page one by one.
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
	to := make(chan *message.Message, pageMessages)
	go func() { //nolint:contextcheck // a message carries its own context
		defer close(to)
		for page := range pages {
			s.reader.deliver(page.Context(), to)
			page.Ack()
		}
	}()
	return to, nil
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

// reader lets Watermill read the outbox table, and says when.
type reader struct {
	Options

	done   context.Context // of the subscriber; Watermill passes none
	logged time.Time       // when the failure was that lasts; zero if none does

	page  []row   // that is read
	more  bool    // there is more than the page
	acked []int64 // of it

	// Between two full scans a page is read behind what was read a while ago, so that the reader
	// does not read over the remains of what was deleted. A message that commits later than
	// that, with a smaller id, is found by the next full scan.
	after, last  int64
	began        time.Time // when the page was asked for
	scanned      time.Time // when the last full scan was
	scan         bool      // this page is one
	scanInterval time.Duration
}

type row struct {
	ID        int64          `json:"id"`
	MessageID string         `json:"message_id"`
	Payload   []byte         `json:"payload"`
	Metadata  map[string]any `json:"metadata"`
}

// deliver sends the messages of the page, and notes those that are acknowledged up to the first
// that is not. That one and those behind it come again.
func (r *reader) deliver(ctx context.Context, to chan *message.Message) {
	ctx, cancel := context.WithTimeout(ctx, ackDeadline)
	defer cancel()
	sent := make([]*message.Message, len(r.page))
	for i, row := range r.page {
		m := message.NewMessage(row.MessageID, row.Payload)
		for name, value := range row.Metadata {
			m.Metadata[name], _ = value.(string) // another program's may not be strings: an error would block the topic
		}
		m.SetContext(ctx)
		select {
		case to <- m:
			sent[i] = m
		case <-ctx.Done():
			return
		}
	}
	for i, m := range sent {
		select {
		case <-m.Acked():
			r.acked = append(r.acked, r.page[i].ID)
			continue
		case <-m.Nacked():
		case <-ctx.Done():
		}
		break
	}
	for len(r.acked) < len(r.page) { // what was not taken comes again behind what was refused
		select {
		case <-to:
			continue
		default:
		}
		break
	}
}

// selectPage reads the oldest messages behind $2, if no other reader of the topic is at work. A
// page is one row, as Watermill reads one message from each.
const selectPage = `
with alone as materialized (
  select pg_try_advisory_xact_lock(hashtextextended('outbox:' || 'outbox'::regclass::oid || ':' || $1::text, 0)) as mine
)
select json_agg(json_build_object('id', id, 'message_id', message_id, 'payload', encode(payload, 'base64'), 'metadata', metadata) order by id)
  from (select *, sum(octet_length(payload)) over (order by id) - octet_length(payload) as before
          from (select id, message_id, payload, metadata
                  from outbox
                 where topic = $1
                   and id > $2
                   and (select mine from alone)
                 order by id
                 limit $3) next) measured
 where before < $4`

// SelectQuery implements Watermill's SchemaAdapter.
func (r *reader) SelectQuery(topic, _ string, _ wsql.OffsetsAdapter) wsql.Query {
	r.page, r.more, r.acked, r.began = nil, false, nil, time.Now() //nolint:forbidigo // it decides only how much is read
	if r.scan = r.began.Sub(r.scanned) >= r.scanInterval; r.scan { //nolint:forbidigo // as above
		r.after = 0
	}
	return wsql.Query{Query: selectPage, Args: []any{topic, r.after, pageMessages, pageBytes}}
}

// UnmarshalMessage makes one message of a page.
func (r *reader) UnmarshalMessage(from wsql.Scanner) (wsql.Row, error) {
	var text []byte
	if err := from.Scan(&text); err != nil {
		return wsql.Row{}, fmt.Errorf("read a page of the outbox: %w", err)
	}
	if r.scan { // from the next page on, what the pages before this one read is behind
		took := time.Since(r.began) //nolint:forbidigo // as above
		r.scanned, r.scanInterval, r.after = r.began, max(fullScan, fullScanShare*took), r.last
	}
	if text == nil {
		return wsql.Row{}, sql.ErrNoRows
	}
	if err := json.Unmarshal(text, &r.page); err != nil {
		return wsql.Row{}, fmt.Errorf("read a page of the outbox: %w", err)
	}
	r.last, r.more = r.page[len(r.page)-1].ID, len(r.page) == pageMessages || len(text) > pageBytes
	return wsql.Row{Offset: r.last, Msg: message.NewMessage("", nil)}, nil
}

// HandleError implements Watermill's BackoffManager. It is called after each poll, when its
// transaction has ended. It waits until the next poll is due, and returns 0.
func (r *reader) HandleError(_ watermill.LoggerAdapter, _ bool, err error) time.Duration {
	failed := err != nil || len(r.acked) < len(r.page)
	switch now := time.Now(); { //nolint:forbidigo // it decides only what is logged
	case r.done.Err() != nil:
	case failed:
		if now.Sub(r.logged) >= logEvery {
			r.logged = now
			r.Log.Error("delivery from the outbox failed and is retried", "refused", len(r.page)-len(r.acked), "error", err)
		}
		r.scanInterval = 0
		loop.Pause(r.done, afterFailure, nil)
	case !r.more:
		loop.Pause(r.done, r.Poll, r.Bell)
	}
	if !failed && len(r.page) > 0 && !r.logged.IsZero() {
		r.logged = time.Time{}
		r.Log.Info("delivery from the outbox works again")
	}
	return 0
}

// deleteAcked need not be durable: a crash that loses it costs a redelivery.
const deleteAcked = `
delete from outbox
 where topic = $1
   and id = any ($2)
   and set_config('synchronous_commit', 'off', true) = 'off'`

// AckMessageQuery deletes what was acknowledged.
func (r *reader) AckMessageQuery(topic string, _ wsql.Row, _ string) wsql.Query {
	return wsql.Query{Query: deleteAcked, Args: []any{topic, append([]int64{}, r.acked...)}}
}

// SubscribeIsolationLevel implements Watermill's SchemaAdapter.
func (*reader) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelReadCommitted }

// BeforeSubscribingQueries fail where the table cannot be read.
func (*reader) BeforeSubscribingQueries(string, string) []wsql.Query {
	return []wsql.Query{{Query: "select from outbox where false"}}
}

var errReadOnly = errors.New("messages enter the outbox by outbox.Append, in the batch that causes them")

// InsertQuery refuses.
func (*reader) InsertQuery(string, message.Messages) (wsql.Query, error) {
	return wsql.Query{}, errReadOnly
}

// What Watermill asks beyond that is empty: Schema makes the table, and nothing is stored between
// a page and its acknowledgment.
func (*reader) SchemaInitializingQueries(string) []wsql.Query { return nil }
func (*reader) NextOffsetQuery(string, string) wsql.Query     { return wsql.Query{} }
func (*reader) ConsumedMessageQuery(string, wsql.Row, string, []byte) wsql.Query {
	return wsql.Query{}
}

// Forward publishes the messages of a topic, in their order and each under its own id, until
// ctx ends; then it returns nil. It acknowledges a message when Publish has returned nil for
// it, so a broker receives each at least once. from may be any subscriber.
func Forward(ctx context.Context, from message.Subscriber, topic string, to message.Publisher) error {
	messages, err := from.Subscribe(ctx, topic)
	if err != nil {
		return err
	}
	for first := range messages {
		page := []*message.Message{first}
		for len(messages) > 0 {
			page = append(page, <-messages)
		}
		err := loop.Safely(func() error { return to.Publish(topic, page...) })
		for _, m := range page {
			if err == nil {
				m.Ack()
			} else {
				m.Nack()
			}
		}
		if err != nil {
			loop.Pause(ctx, afterFailure, nil)
		}
	}
	if ctx.Err() == nil {
		return errors.New("the subscription ended")
	}
	return nil
}
