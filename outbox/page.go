package outbox

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
)

// The bounds of a page.
const (
	pageMessages = 500
	pageBytes    = 1 << 20 // of payloads and metadata
)

// Messages returns the messages of a page that a subscriber has delivered, in their order,
// each with its own id and metadata, and in the page's context. The page is acknowledged or
// refused, not they.
func Messages(page *message.Message) ([]*message.Message, error) {
	var all []struct {
		ID       string         `json:"id"`
		Metadata map[string]any `json:"metadata"`
		Payload  []byte         `json:"payload"`
	}
	if err := json.Unmarshal(page.Payload, &all); err != nil {
		return nil, fmt.Errorf("read page %s of the outbox: %w", page.UUID, err)
	}
	messages := make([]*message.Message, len(all))
	for i, one := range all {
		m := message.NewMessage(one.ID, one.Payload)
		for name, value := range one.Metadata {
			// A value that is no string becomes an empty one: an error here would block
			// the topic for ever, and the other values still say where the message goes.
			text, _ := value.(string)
			m.Metadata[name] = text
		}
		m.SetContext(page.Context())
		messages[i] = m
	}
	return messages, nil
}

// timeline is that of the server, which a promotion changes.
const timeline = `left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)`

// requireTimeline fails on another timeline: the cast does, and its error names both.
const requireTimeline = `
select case when ` + timeline + ` <> $1::text
            then ('the page was read on timeline ' || $1::text || ', this is ' || ` + timeline + `)::int
       end`

const timelineOfPage = "timeline" // in the metadata of a page

// SameTimeline queues a statement that fails where the server is not on the timeline on which
// a page was read. The statements behind it in the batch then have no effect. A subscriber
// reads a page in one session, and its receiver stores the page in another one, which may be of
// the server that a failover has promoted. That server may lack the messages' transactions.
func SameTimeline(b *pgx.Batch, page *message.Message) {
	b.Queue(requireTimeline, page.Metadata.Get(timelineOfPage))
}

// selectPage reads the next page of a group. The row comparison is one range of the primary
// key, whatever the backlog. The exists guard keeps an idle poll read-only, without a row lock
// or transaction id. Its offset keeps it a probe: a plan of when the outbox was empty would
// join, and read all that is not deleted yet. The order is that of the columns: as text, 100
// would come before 98, and the messages between them would be lost. Where transaction ids are
// another server's, no page is read.
//
// A page is one row, as Watermill reads one message from each: its messages in JSON, its
// position, that of the group before it, their number, whether there may be more, whether
// messages are committed that cannot be read yet, because an older transaction is in flight,
// whether the group's position is known, and the timeline. A page ends before the message that
// would make it longer than $4 bytes; a message that is longer is a page of its own.
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
   limit $3
), measured as (
  select n.*,
         row_number() over log as place,
         row_number() over log = 1
      or sum(octet_length(n.payload) + octet_length(n.metadata::text)) over log <= $4 as fits
    from next n
  window log as (order by n.transaction_id, n."offset")
)
select json_agg(json_build_object('id', message_id, 'metadata', metadata, 'payload', encode(payload, 'base64'))
                order by place) filter (where fits),
       (array_agg(transaction_id::text order by place desc) filter (where fits))[1],
       (array_agg("offset" order by place desc) filter (where fits))[1],
       (array_agg(message_id order by place desc) filter (where fits))[1],
       (select (p.transaction_id, p."offset")::text from position p),
       count(*) filter (where fits),
       count(*) = $3 or not coalesce(bool_and(fits), true),
       exists (
         select
           from outbox m
          where m.topic = $1
            and (m.transaction_id, m."offset") > (pg_snapshot_xmin(pg_current_snapshot()), 0)
            and (m.transaction_id, m."offset") >
                ((select o.transaction_id from outbox_offsets o where o.topic = $1 and o.consumer_group = $2),
                 (select o."offset" from outbox_offsets o where o.topic = $1 and o.consumer_group = $2))
         offset 0),
       (select own from numbering)
   and exists (select from outbox_offsets o where o.topic = $1 and o.consumer_group = $2),
       ` + timeline + `
  from measured`

// SelectQuery implements Watermill's SchemaAdapter.
func (r *reader) SelectQuery(topic, group string, _ wsql.OffsetsAdapter) wsql.Query {
	return wsql.Query{Query: selectPage, Args: []any{topic, group, r.limit, pageBytes}}
}

// Keys of ExtraData.
const (
	transactionID    = "transaction_id"
	previousPosition = "position" // of the group when the page was read
)

var errNoPosition = errors.New("the group has no row in outbox_offsets, or the tables were restored from a dump, see numbering_mark in Schema")

// UnmarshalMessage makes one message of a page, with the id and position of the last in it.
func (r *reader) UnmarshalMessage(from wsql.Scanner) (wsql.Row, error) {
	var row wsql.Row
	var page []byte
	var xid, id, position, timeline sql.NullString
	var offset sql.NullInt64
	var known bool
	if err := from.Scan(&page, &xid, &offset, &id, &position, &r.read, &r.more, &r.blockedByTransaction, &known, &timeline); err != nil {
		return wsql.Row{}, fmt.Errorf("scan a page of the outbox: %w", err)
	}
	if !known {
		return wsql.Row{}, errNoPosition
	}
	if r.read == 0 {
		return wsql.Row{}, sql.ErrNoRows
	}
	row.Offset, row.UUID, row.Payload = offset.Int64, []byte(id.String), page
	row.ExtraData = map[string]any{transactionID: xid.String, previousPosition: position.String}
	row.Msg = message.NewMessage(id.String, page)
	row.Msg.Metadata.Set(timelineOfPage, timeline.String)
	return row, nil
}
