package timeline

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/ledger"
)

// inboxGroup is the consumer group that feeds the inbox. What other groups have read
// brings the charge no further.
const inboxGroup = "inbox"

type outboxRow struct {
	ChargeID      string
	Topic         string
	MessageID     string
	Type          string
	TransactionID string
	Offset        int64
	CreatedAt     time.Time
	PassedBy      []string
}

// A message is committed with its event, so the event's transaction leads to it
// by the outbox's primary key.
const selectOutbox = `
select e.stream_id                      as charge_id,
       o.topic,
       o.message_id,
       coalesce(o.metadata ->> 'type', '') as type,
       o.transaction_id::text           as transaction_id,
       o."offset",
       o.created_at,
       array(
         select f.consumer_group
           from outbox_offsets f
          where f.topic = o.topic
            and (f.transaction_id, f."offset") >= (o.transaction_id, o."offset")
          order by f.consumer_group) as passed_by
  from ledger_events e
  join outbox o
    on o.topic = any($2)
   and o.transaction_id = e.txid
   and o.message_id = e.event_id::text
 where e.stream_id = any($1)
 order by o.transaction_id, o."offset"`

func (r *reading) outbox(ctx context.Context) error {
	rows, err := collect[outboxRow](ctx, r.q, "the outbox", selectOutbox, r.ids, []string{ledger.Topic, ledger.Outcomes})
	if err != nil {
		return err
	}
	for _, row := range rows {
		what := "waiting"
		if slices.Contains(row.PassedBy, inboxGroup) {
			what = "passed"
		}
		r.add(Entry{
			At: row.CreatedAt, Kind: Outbox, ChargeID: row.ChargeID, What: what, Who: row.Topic,
			Detail: map[string]any{
				"message_id": row.MessageID, "type": row.Type, "transaction": row.TransactionID, "offset": row.Offset,
				"passed_by": row.PassedBy,
			},
		})
	}
	return nil
}

type inboxRow struct {
	Number     int64
	Receiver   string
	MessageID  string
	ChargeID   string
	Type       string
	Status     inbox.Status
	Claims     int64
	Attempts   int
	Deaths     int
	Waits      int
	Duplicates int
	Holder     string
	LastError  string
	DecidedBy  string
	ReceivedAt time.Time
	DueAt      *time.Time
	FinishedAt *time.Time
	DecidedAt  *time.Time
}

// A discard takes a fence of its own, which nobody claimed.
const selectInbox = `
select id                                    as number,
       receiver,
       message_id,
       ordering_key                          as charge_id,
       type,
       status,
       fence - (status = 'discarded')::int   as claims,
       attempts,
       deaths,
       waits,
       duplicates,
       coalesce(holder, '')                  as holder,
       coalesce(last_error, '')              as last_error,
       coalesce(decided_by, '')              as decided_by,
       received_at,
       due_at,
       finished_at,
       decided_at
  from inbox
 where ordering_key = any($1)
 order by id`

// inbox shows of each message when it came, what an operator decided last, and
// how it ended or stands.
func (r *reading) inbox(ctx context.Context) error {
	rows, err := collect[inboxRow](ctx, r.q, "the inbox", selectInbox, r.ids)
	if err != nil {
		return err
	}
	for _, row := range rows {
		r.messages[row.MessageID] = row.ChargeID
		r.add(row.entry(row.ReceivedAt, "received", row.Receiver, map[string]any{
			"message_id": row.MessageID, "duplicates": row.Duplicates,
		}))
		if row.DecidedAt != nil && row.Status != inbox.StatusDiscarded {
			r.add(row.entry(*row.DecidedAt, "retried", row.DecidedBy, map[string]any{"receiver": row.Receiver}))
		}
		r.add(row.stand(r.t.AsOf))
	}
	return nil
}

func (row inboxRow) entry(at time.Time, what, who string, detail map[string]any) Entry {
	detail["message"], detail["type"] = row.Number, row.Type
	return Entry{At: at, Kind: Inbox, ChargeID: row.ChargeID, What: what, Who: who, Detail: detail}
}

// stand is the end of a message or, while there is none, how it stands.
func (row inboxRow) stand(now time.Time) Entry {
	who, at := row.Receiver, now
	work := map[string]any{"claims": row.Claims, "attempts": row.Attempts, "waits": row.Waits, "deaths": row.Deaths}
	if row.LastError != "" {
		work["last_error"] = row.LastError
	}
	if row.Holder != "" {
		work["holder"] = row.Holder
	}
	what := string(row.Status)
	switch row.Status {
	case inbox.StatusDone, inbox.StatusDiscarded:
		if row.FinishedAt != nil {
			at = *row.FinishedAt
		}
		if row.Status == inbox.StatusDiscarded {
			who, work["receiver"] = row.DecidedBy, row.Receiver
		}
	case inbox.StatusDead:
		what = "parked"
	case inbox.StatusPending:
		if row.DueAt == nil {
			work["held_back"] = true // other messages of its merchant go first
		} else {
			work["due_at"] = row.DueAt.UTC()
		}
	case inbox.StatusRunning:
		work["lease_ends_at"] = row.DueAt.UTC()
	}
	return row.entry(at, what, who, work)
}

type quarantineRow struct {
	Receiver   string
	MessageID  string
	Payload    string
	ReceivedAt time.Time
}

const selectQuarantine = `
select receiver,
       message_id,
       encode(payload_hash, 'hex') as payload,
       received_at
  from inbox_quarantine
 where message_id = any($1)
 order by id`

// quarantine shows messages that came under a known id with another payload.
func (r *reading) quarantine(ctx context.Context) error {
	ids := slices.Sorted(maps.Keys(r.messages))
	rows, err := collect[quarantineRow](ctx, r.q, "the quarantine", selectQuarantine, ids)
	if err != nil {
		return err
	}
	for _, row := range rows {
		r.add(Entry{
			At: row.ReceivedAt, Kind: Inbox, ChargeID: r.messages[row.MessageID], What: "quarantined", Who: row.Receiver,
			Detail: map[string]any{"message_id": row.MessageID, "payload_sha256": row.Payload},
		})
	}
	return nil
}
