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
	logEvery     = time.Minute // a failure that lasts

	reread        = 2000        // ids before the last one that a page reads again, for transactions that commit later
	fullScan      = time.Second // between two pages that are read from the beginning
	fullScanShare = 20          // of the time, at most one part is for them
)

// reader lets Watermill read the outbox table, and says when. Watermill calls its methods one
// after the other, from one goroutine.
type reader struct {
	Options

	deadline time.Duration         // of acknowledgments
	done     context.Context       // of the subscriber; Watermill passes none
	to       chan *message.Message // holds a page
	poll     time.Duration         // between two reads of an empty topic
	logged   time.Time             // when the failure was that lasts; zero if none does

	ids   []int64 // of the page
	bytes int     // in it
	acked int     // so many of ids, from the first

	// Between two full scans a page is read from a little before the last one, so that the reader
	// does not read over the remains of what was deleted. A message with a smaller id, of a
	// transaction that commits later, is found by the next full scan.
	last     int64
	began    time.Time
	took     time.Duration // until the page had come
	scan     bool          // this page is one
	nextScan time.Time
}

// selectPage reads the oldest messages behind $2, if no other reader of the topic is at work: a
// reader that finds a message locks the topic's row, which the first one makes. The transaction is
// idle while they are handled, for longer than a pool may allow its own.
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
func (r *reader) SelectQuery(topic, _ string, _ wsql.OffsetsAdapter) wsql.Query {
	r.ids, r.bytes, r.acked = nil, 0, 0
	r.began = time.Now() //nolint:forbidigo // it decides only how much is read
	after := r.last - reread
	if r.scan = !r.began.Before(r.nextScan); r.scan {
		after = 0
	}
	idle := strconv.FormatInt(2*r.deadline.Milliseconds(), 10)
	return wsql.Query{Query: selectPage, Args: []any{topic, after, pageMessages, pageBytes, idle}}
}

// UnmarshalMessage reads the whole page at its first row and delivers it, since Watermill waits for
// the acknowledgment of one message before it delivers the next one. It returns an empty message that
// stands for all that were acknowledged.
func (r *reader) UnmarshalMessage(from wsql.Scanner) (wsql.Row, error) {
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
		page, r.ids, r.bytes = append(page, m), append(r.ids, id), r.bytes+len(m.Payload)+len(metadata)
	}
	r.took = time.Since(r.began) //nolint:forbidigo // as above
	if err := rows.Err(); err != nil {
		return wsql.Row{}, fmt.Errorf("read a page of the outbox: %w", err)
	}
	r.deliver(page)
	if r.acked == 0 {
		return wsql.Row{}, sql.ErrNoRows
	}
	return wsql.Row{Offset: r.ids[r.acked-1], Msg: message.NewMessage("", nil)}, nil
}

// deliver sends the messages of the page, and counts those that are acknowledged up to the
// first that is not. That message and those behind it are delivered again.
func (r *reader) deliver(page []*message.Message) {
	deadline := time.After(r.deadline)
	for _, m := range page {
		r.to <- m // which holds nothing of the page before
	}
	for _, m := range page {
		select {
		case <-m.Acked():
			r.acked++
			continue
		case <-m.Nacked():
		case <-deadline:
		case <-r.done.Done():
		}
		break
	}
	for r.acked < len(page) { // what the receiver has not taken is delivered again behind what it refused
		select {
		case <-r.to:
			continue
		default:
		}
		break
	}
}

// HandleError implements Watermill's BackoffManager. It is called after each poll, when its
// transaction has ended. It waits until the next poll is due, and returns 0.
func (r *reader) HandleError(_ watermill.LoggerAdapter, _ bool, err error) time.Duration {
	now, failed := time.Now(), err != nil || r.acked < len(r.ids) //nolint:forbidigo // it decides only when is read, and what is logged
	if len(r.ids) == 0 {
		r.took = now.Sub(r.began)
	}
	if r.scan && err == nil {
		r.nextScan = r.began.Add(max(fullScan, fullScanShare*r.took))
	}
	if len(r.ids) > 0 {
		r.last = r.ids[len(r.ids)-1]
	}
	switch {
	case r.done.Err() != nil:
	case failed:
		if now.Sub(r.logged) >= logEvery {
			r.logged = now
			r.logFailure(err)
		}
		r.nextScan = time.Time{}
		loop.Pause(r.done, afterFailure, nil)
	case len(r.ids) < pageMessages && r.bytes < pageBytes: // there is no more
		wait := r.poll
		if !r.scan { // a message with a smaller id may have rung
			wait = min(wait, r.nextScan.Sub(now))
		}
		loop.Pause(r.done, wait, r.Bell)
	}
	if !failed && len(r.ids) > 0 && !r.logged.IsZero() {
		r.logged = time.Time{}
		r.Log.Info("delivery from the outbox works again")
	}
	return 0
}

// logFailure has no error where messages were refused.
func (r *reader) logFailure(err error) {
	args := []any{"refused", len(r.ids) - r.acked}
	if err != nil {
		args = append(args, "error", err)
	}
	r.Log.Error("delivery from the outbox failed and is retried", args...)
}

// deleteAcked need not be durable: a crash that loses it costs a redelivery.
const deleteAcked = `
-- outbox.deleteAcked
delete from outbox
 where topic = $1
   and id = any ($2::bigint[])
   and id >= ($2::bigint[])[1]
   and id <= ($2::bigint[])[cardinality($2::bigint[])]
   and set_config('synchronous_commit', 'off', true) = 'off'`

// AckMessageQuery deletes what was acknowledged.
func (r *reader) AckMessageQuery(topic string, _ wsql.Row, _ string) wsql.Query {
	return wsql.Query{Query: deleteAcked, Args: []any{topic, r.ids[:r.acked]}}
}

// SubscribeIsolationLevel implements Watermill's SchemaAdapter.
func (*reader) SubscribeIsolationLevel() sql.IsolationLevel { return sql.LevelReadCommitted }

// BeforeSubscribingQueries fail where the table cannot be read.
func (*reader) BeforeSubscribingQueries(string, string) []wsql.Query {
	return []wsql.Query{{Query: "-- outbox.none\nselect from outbox where false"}}
}

// What Watermill asks beyond that is empty: messages enter the outbox by Append, Schema makes
// the table, and nothing is stored between a page and its acknowledgment.
func (*reader) InsertQuery(string, message.Messages) (wsql.Query, error) {
	return wsql.Query{}, errors.ErrUnsupported
}
func (*reader) SchemaInitializingQueries(string) []wsql.Query { return nil }
func (*reader) NextOffsetQuery(string, string) wsql.Query     { return wsql.Query{} }
func (*reader) ConsumedMessageQuery(string, wsql.Row, string, []byte) wsql.Query {
	return wsql.Query{}
}
