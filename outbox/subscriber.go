package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Timing of a subscriber. An idle poll reads one index entry and writes nothing.
const (
	pollInterval   = 15 * time.Millisecond
	gatherInterval = 25 * time.Millisecond // behind a page of several, at most: see pause
	retryInterval  = 100 * time.Millisecond
	ackDeadline    = 30 * time.Second
)

// NewSubscriber is Watermill's SQL subscriber over this package's tables. What it
// hands over as one message is a page of the outbox, see Messages: one transaction
// and few statements for all of them. Of a topic and group one subscriber reads at a
// time: the others wait on the group's offset row for their turn, and go on when it
// dies.
//
// The handler runs inside the subscriber's transaction, which commits the
// group's offset together with what the handler wrote through it
// (TxFromContext). While it is open no reader of any topic sees newer
// messages, so a handler does its statement and nothing else: no call over a
// network, no waiting, no retry. ByPage is how it fails.
func NewSubscriber(db *sql.DB, group string, log *slog.Logger) message.Subscriber {
	return NewSubscriberTelling(db, group, log, func() {})
}

// NewSubscriberTelling is NewSubscriber that also tells when Watermill is done with
// the transaction of a page, mostly by its commit: what the handler wrote can be read
// then. It is a hint, given once for each page, by one goroutine for each
// subscription; told must return at once.
func NewSubscriberTelling(db *sql.DB, group string, log *slog.Logger, told func()) message.Subscriber {
	return &subscriber{
		db: db, group: group, log: log, told: told, retry: retryInterval,
		now: time.Now, //nolint:forbidigo // how fast messages come, and when a failure was logged: it decides nothing but a wait
	}
}

// subscriber is one of Watermill's for each subscription, so that what a reader
// knows is of one topic, and used by one goroutine.
type subscriber struct {
	db    *sql.DB
	group string
	log   *slog.Logger
	told  func()
	retry time.Duration // between two reads that fail
	now   func() time.Time

	mu     sync.Mutex
	opened []*wsql.Subscriber
	closed bool
}

// Subscribe implements message.Subscriber.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	deadline := ackDeadline
	r := &reader{
		told: s.told, errors: wsql.NewDefaultBackoffManager(pollInterval, s.retry), now: s.now,
		log: s.log.With("topic", topic, "consumer_group", s.group), failures: failures{now: s.now},
	}
	opened, err := wsql.NewSubscriber(s.db, wsql.SubscriberConfig{
		ConsumerGroup:  s.group,
		AckDeadline:    &deadline,
		ResendInterval: retryInterval,
		BackoffManager: r,
		SchemaAdapter:  r,
		OffsetsAdapter: offsets{},
	}, logger{log: s.log, errors: &r.failures})
	if err != nil {
		return nil, fmt.Errorf("make the subscriber of %s: %w", s.group, err)
	}
	s.mu.Lock()
	closed := s.closed
	s.opened = append(s.opened, opened)
	s.mu.Unlock()
	if closed {
		return nil, fmt.Errorf("subscribe %s to %s: %w", s.group, topic, wsql.ErrSubscriberClosed)
	}
	messages, err := opened.Subscribe(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("subscribe %s to %s: %w", s.group, topic, err)
	}
	return messages, nil
}

// Close implements message.Subscriber. It returns when what was subscribed before
// reads no more.
func (s *subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	opened := s.opened
	s.mu.Unlock()
	var err error
	for _, one := range opened {
		err = errors.Join(err, one.Close())
	}
	return err
}

// SessionSettings are for the sessions of a subscriber. They run few statements,
// and each of them, the insert into an inbox too, is a walk along one index. But
// plans are kept, and one that was made while a table was small, or never
// analyzed, would read the whole table for every page and message; so nothing but
// the walk is offered.
func SessionSettings() map[string]string {
	return map[string]string{
		"enable_bitmapscan": "off",
		"enable_seqscan":    "off",
		"enable_hashjoin":   "off",
		"enable_mergejoin":  "off",
	}
}

// TxFromContext is the subscriber's transaction around a page and each of its messages.
func TxFromContext(m *message.Message) (*sql.Tx, bool) { return wsql.TxFromContext(m.Context()) }

// reader lets Watermill read the outbox table, and paces it. Its rows are inserted by
// Append alone, its tables made by the migrations alone.
type reader struct {
	told   func()
	errors wsql.BackoffManager
	now    func() time.Time

	log      *slog.Logger
	failures failures

	pace   pace
	untold bool // a page was read, and nobody was told of it
}

var errReadOnly = errors.New("messages enter the outbox by outbox.Append, in the batch that causes them")

// InsertQuery refuses: a message enters by Append alone.
func (*reader) InsertQuery(string, message.Messages) (wsql.Query, error) {
	return wsql.Query{}, errReadOnly
}

// SchemaInitializingQueries are none: the migrations make the tables.
func (*reader) SchemaInitializingQueries(string) []wsql.Query { return nil }

// SubscribeIsolationLevel: under Watermill's default, repeatable read, the
// insert into the inbox would raise serialization failures as soon as a row was
// merely claimed or finished after the snapshot.
func (*reader) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelReadCommitted }

// The row comparison is one range of the primary key, whatever the backlog. The
// exists guard keeps an idle poll read-only: no row lock, no transaction id. Its
// offset keeps it a probe: a plan of when the outbox was empty would join, and read
// all that was received and is not swept yet, a hundred times a second. The order is
// that of the column: an output column of the same name, cast to text,
// would sort 100 before 98 and lose what lies between.
//
// Where the numbers are another server's, no position is known and no page is
// read: a repair would find the offset moved past what nobody has received.
//
// A page ends before the message that would make it longer than $7 bytes, and a
// message that is longer alone is a page alone. One that begins where the last one
// did ($3, $4) was not received; it comes again with fewer messages ($5 for $6).
const selectPage = `
with position as materialized (
  select o.transaction_id,
         o."offset"
    from outbox_offsets o
   where o.topic = $1
     and o.consumer_group = $2
     and exists (
           select
             from outbox m
            where m.topic = $1
              and (m.transaction_id, m."offset") > (o.transaction_id, o."offset")
              and m.transaction_id < pg_snapshot_xmin(pg_current_snapshot())
           offset 0)
     and (select own from numbering)
     for update of o
), next as (
  select o.transaction_id,
         o."offset",
         o.message_id,
         o.payload,
         o.metadata
    from outbox o
   where o.topic = $1
     and (o.transaction_id, o."offset") > ((select transaction_id from position), (select "offset" from position))
     and o.transaction_id < pg_snapshot_xmin(pg_current_snapshot())
   order by o.transaction_id, o."offset"
   limit (select case when (transaction_id, "offset") = ($3::text::xid8, $4) then $5::int else $6::int end from position)
), measured as (
  select n.transaction_id,
         n."offset",
         n.message_id,
         n.payload,
         n.metadata,
         sum(octet_length(n.payload) + octet_length(n.metadata::text)) over (order by n.transaction_id, n."offset") as bytes,
         row_number() over (order by n.transaction_id, n."offset") as place
    from next n
)
select m."offset",
       m.transaction_id::text as xid,
       m.message_id,
       m.payload,
       m.metadata,
       p.transaction_id::text as behind_xid,
       p."offset" as behind_offset
  from measured m
 cross join position p
 where m.bytes <= $7
    or m.place = 1
 order by m.transaction_id, m."offset"`

// SelectQuery implements Watermill's SchemaAdapter.
func (r *reader) SelectQuery(topic, group string, _ wsql.OffsetsAdapter) wsql.Query {
	xid, offset := r.pace.behind()
	return wsql.Query{Query: selectPage, Args: []any{topic, group, xid, offset, r.pace.again(), r.pace.onward(), pageBytes}}
}

// HandleError implements Watermill's BackoffManager. It is called when Watermill is
// done with a look and its transaction, whatever came of it, and says how long to wait
// before the next one.
func (r *reader) HandleError(log watermill.LoggerAdapter, nothing bool, err error) time.Duration {
	read := r.untold
	if read {
		r.untold = false
		r.told()
	}
	wait := r.errors.HandleError(log, nothing, err)
	if n := r.failures.ended(err == nil); n > 0 {
		r.log.Info("reading the outbox works again", "failures", n)
	}
	if read && err == nil {
		return r.pace.pause()
	}
	return wait
}

const transactionID = "transaction_id" // the key of ExtraData

// UnmarshalMessage makes one message of all rows that there are. Its id and its
// position are those of the last of them.
//
// Watermill asks for a message of each row, and hands over its *sql.Rows for that.
// We go on to the next one ourselves, so it finds none left. Were it to hand over
// something else some day, each row would be a page.
func (r *reader) UnmarshalMessage(from wsql.Scanner) (wsql.Row, error) {
	rows, walks := from.(interface {
		Next() bool
		Err() error
	})
	var row wsql.Row
	var xid, id, behind string
	var offset int64
	for messages := 1; ; messages++ {
		var payload, metadata []byte
		if err := from.Scan(&row.Offset, &xid, &id, &payload, &metadata, &behind, &offset); err != nil {
			return wsql.Row{}, fmt.Errorf("scan a row of the outbox: %w", err)
		}
		row.Payload = appendMessage(row.Payload, id, metadata, payload)
		if walks && rows.Next() {
			continue
		}
		r.pace = r.pace.read(r.now(), behind, offset, messages, len(row.Payload))
		r.untold = true
		break
	}
	if walks {
		if err := rows.Err(); err != nil {
			return wsql.Row{}, fmt.Errorf("read a page of the outbox: %w", err)
		}
	}
	row.UUID = []byte(id)
	row.ExtraData = map[string]any{transactionID: xid}
	row.Msg = message.NewMessage(id, row.Payload)
	return row, nil
}

// offsets keeps all groups of all topics in outbox_offsets.
type offsets struct{}

const insertOffset = `
insert into outbox_offsets
       (topic, consumer_group, transaction_id, "offset")
values ($1, $2, '0', 0)
on conflict do nothing`

// BeforeSubscribingQueries makes the row that the active subscriber locks.
func (offsets) BeforeSubscribingQueries(topic, group string) []wsql.Query {
	return []wsql.Query{{Query: insertOffset, Args: []any{topic, group}}}
}

const updateOffset = `
update outbox_offsets
   set transaction_id = $3::text::xid8,
       "offset" = $4
 where topic = $1
   and consumer_group = $2`

func (offsets) AckMessageQuery(topic string, row wsql.Row, group string) wsql.Query {
	return wsql.Query{Query: updateOffset, Args: []any{topic, group, row.ExtraData[transactionID], row.Offset}}
}

// NextOffsetQuery is empty: the page's own query reads the offset.
func (offsets) NextOffsetQuery(string, string) wsql.Query { return wsql.Query{} }

// ConsumedMessageQuery is empty: nothing is written between a message and its ack.
func (offsets) ConsumedMessageQuery(string, wsql.Row, string, []byte) wsql.Query {
	return wsql.Query{}
}

// SchemaInitializingQueries are none: the migrations make the tables.
func (offsets) SchemaInitializingQueries(string) []wsql.Query { return nil }
