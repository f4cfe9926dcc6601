package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/payonce/payonce/internal/loop"
)

const (
	pageMessages = 500
	pageBytes    = 1 << 20 // of payloads and metadata; a longer message is a page of its own
	ackDeadline  = 30 * time.Second
	afterFailure = 100 * time.Millisecond

	reread   = 2000        // ids before the last one that a page reads again, for transactions that commit later
	fullScan = time.Second // between two pages that are read from id 0
)

// selectPage reads the oldest messages behind $2. waiting: there are some; the transaction stays idle while the page is
// handled, so it raises its own idle time-out. made inserts the topic's row for the first reader ever, and locked locks
// it: beside another reader both are empty. before is the length of the page before a message, below $4 bytes.
const selectPage = `
-- outbox.selectPage
with waiting as materialized (
  select set_config('idle_in_transaction_session_timeout', $5::text, true)
    from outbox
   where topic = $1
     and id > $2
   limit 1
), made as (
  insert into outbox_topics (topic)
  select $1
    from waiting
   where (select topic from outbox_topics where topic = $1) is null
  on conflict do nothing
  returning topic
), locked as materialized (
  select topic
    from outbox_topics,
         waiting
   where topic = $1
     for update of outbox_topics skip locked
)
select id, message_id, payload, metadata
  from (select *, sum(octet_length(payload) + octet_length(metadata)) over (order by id rows between unbounded preceding and 1 preceding) as before
          from (select id, message_id, payload, metadata::text as metadata
                  from outbox
                 where topic = $1
                   and id > $2
                   and exists (select from made union all select from locked)
                 order by id
                 limit $3) next) measured
 where before is null
    or before < $4
 order by id`

// SelectQuery implements Watermill's SchemaAdapter.
func (s *subscriber) SelectQuery(topic, _ string, _ wsql.OffsetsAdapter) wsql.Query {
	s.ids, s.bytes, s.acked = nil, 0, 0
	after := s.last - reread
	s.scan = time.Now().After(s.nextScan) //nolint:forbidigo // it decides only how much is read
	if s.scan {
		after = 0
	}
	idle := strconv.FormatInt((s.deadline + 5*time.Second).Milliseconds(), 10)
	return wsql.Query{Query: selectPage, Args: []any{topic, after, pageMessages, pageBytes, idle}}
}

// UnmarshalMessage reads the whole page at its first row and delivers it, since Watermill waits for
// the acknowledgment of one message before it delivers the next one. It returns an empty message that
// stands for all that were acknowledged.
func (s *subscriber) UnmarshalMessage(from wsql.Scanner) (wsql.Row, error) {
	rows, ok := from.(*sql.Rows)
	if !ok {
		return wsql.Row{}, fmt.Errorf("read a page of the outbox: watermill-sql passes a %T", from)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // when no message of the page is ready any more
	var page []*message.Message
	for next := true; next; next = rows.Next() {
		var id int64
		var metadata []byte
		m := message.NewMessage("", nil)
		if err := rows.Scan(&id, &m.UUID, (*[]byte)(&m.Payload), &metadata); err != nil {
			return wsql.Row{}, fmt.Errorf("read a page of the outbox: %w", err)
		}
		_ = json.Unmarshal(metadata, &m.Metadata) // values of another program that are no text are empty: an error would block the topic
		m.SetContext(ctx)
		page, s.ids, s.bytes = append(page, m), append(s.ids, id), s.bytes+len(m.Payload)+len(metadata)
	}
	if err := rows.Err(); err != nil {
		return wsql.Row{}, fmt.Errorf("read a page of the outbox: %w", err)
	}
	s.deliver(page)
	if s.acked == 0 {
		return wsql.Row{}, sql.ErrNoRows
	}
	return wsql.Row{Offset: s.ids[s.acked-1], Msg: message.NewMessage("", nil)}, nil
}

// deliver sends the messages of the page, and counts those that are acknowledged up to the
// first that is not. That message and those behind it are delivered again.
func (s *subscriber) deliver(page []*message.Message) {
	deadline := time.After(s.deadline)
	for _, m := range page {
		s.out <- m // it never blocks: out was empty, and holds a page
	}
	for _, m := range page {
		select {
		case <-m.Acked():
			s.acked++
			continue
		case <-m.Nacked():
		case <-deadline:
		case <-s.life.Done():
		}
		break
	}
	for s.acked < len(page) { // what was not taken is redelivered with the next page
		select {
		case <-s.out:
			continue
		default:
		}
		break
	}
}

// HandleError implements Watermill's BackoffManager. It is called after each poll, when its
// transaction has ended. It waits until the next poll is due, and returns 0.
func (s *subscriber) HandleError(_ watermill.LoggerAdapter, _ bool, err error) time.Duration {
	now, failed := time.Now(), err != nil || s.acked < len(s.ids) //nolint:forbidigo // it decides only when is read
	if s.scan && err == nil {
		s.nextScan = now.Add(fullScan)
	}
	if len(s.ids) > 0 {
		s.last = s.ids[len(s.ids)-1]
	}
	switch {
	case s.life.Err() != nil:
		return 0
	case failed && !s.failed:
		s.Log.Error("delivery from the outbox failed and is retried", "refused", len(s.ids)-s.acked, "error", err)
	case s.failed && !failed:
		s.Log.Info("delivery from the outbox works again")
	}
	switch s.failed = failed; {
	case failed:
		s.nextScan = time.Time{}
		loop.Pause(s.life, afterFailure, nil)
	case len(s.ids) < pageMessages && s.bytes < pageBytes: // there is no more
		wait := s.poll
		if !s.scan { // a message with a smaller id may have rung
			wait = min(wait, s.nextScan.Sub(now))
		}
		loop.Pause(s.life, wait, s.Bell)
	}
	return 0
}

// deleteAcked need not be durable: a crash that loses it costs a redelivery. The bounds of the id keep it a
// range of the primary key.
const deleteAcked = `
-- outbox.deleteAcked
delete from outbox
 where topic = $1
   and id = any ($2::bigint[])
   and id >= ($2::bigint[])[1]
   and id <= ($2::bigint[])[cardinality($2::bigint[])]
   and set_config('synchronous_commit', 'off', true) = 'off'`

// AckMessageQuery deletes what was acknowledged.
func (s *subscriber) AckMessageQuery(topic string, _ wsql.Row, _ string) wsql.Query {
	return wsql.Query{Query: deleteAcked, Args: []any{topic, s.ids[:s.acked]}}
}

// SubscribeIsolationLevel implements Watermill's SchemaAdapter.
func (*subscriber) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelReadCommitted }

// BeforeSubscribingQueries fail where the table cannot be read.
func (*subscriber) BeforeSubscribingQueries(string, string) []wsql.Query {
	return []wsql.Query{{Query: "-- outbox.none\nselect from outbox where false"}}
}

// What Watermill asks beyond that is empty: messages enter the outbox by Append, Schema makes
// the table, and nothing is stored between a page and its acknowledgment.
func (*subscriber) InsertQuery(string, message.Messages) (wsql.Query, error) {
	return wsql.Query{}, errors.ErrUnsupported
}
func (*subscriber) SchemaInitializingQueries(string) []wsql.Query { return nil }
func (*subscriber) NextOffsetQuery(string, string) wsql.Query     { return wsql.Query{} }
func (*subscriber) ConsumedMessageQuery(string, wsql.Row, string, []byte) wsql.Query {
	return wsql.Query{}
}
