// Package outbox sends messages that exist exactly if the transaction that causes them does,
// to Watermill subscribers and, by Forward, to any broker. A program that commits and then
// publishes loses messages when it dies in between, and one that publishes first sends
// messages of transactions that roll back. Here a message is a row of the transaction.
//
// # Usage
//
//	_, err := pool.Exec(ctx, outbox.Schema()) // once, or goose or psql does it
//
//	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		// … what the transaction decides
//		return outbox.Send(ctx, tx, outbox.Message{Topic: "orders", ID: id, Payload: body})
//	})
//
//	err = outbox.Forward(ctx, pool, "kafka", "orders", publisher, outbox.Options{})
//
// # Guarantees
//
//	a message exists exactly if its transaction does    one row of that transaction
//	messages have one order, that of transaction ids    primary key outbox_pkey
//	none is passed over, however late it is committed   pg_snapshot_xmin: no page reaches the oldest transaction in flight
//	each group receives each message at least once      primary key outbox_offsets_pkey; the offset moves only from where a page was read
//	none is deleted that a group has not received       DeleteExpired compares with outbox_offsets
//	transaction ids of another server mislead no reader view numbering: after a dump is restored, nothing is read
//
// # Failures
//
//   - A process dies, or a connection is cut, before the offset has moved: the page is
//     redelivered.
//   - A connection is cut in COMMIT: the transaction and its messages exist or do not. Repeat
//     it under the same key, as package idempotency does; groupcommit leaves that to its caller.
//   - A receiver or broker refuses a message: it holds up those behind it, in its group alone.
//     There are no dead letters: an inbox has them, and a Publisher may store what it cannot send.
//   - A transaction stays open, in any database of the server: no younger message is read, of
//     any topic.
//   - A dump is restored: nothing is read until the SQL at numbering_mark in Schema was run.
//     Readers log it, as they do if the offset of their group is deleted.
//
// # Limits
//
// Delivery is not exactly once: the receiver drops repetitions by the message's id, as package
// inbox does. There is no delay and no priority. A topic has one reader for each group, whose
// offset moves once for each page.
//
// # Expiry
//
// Call DeleteExpired every minute or so. It deletes what all groups have received. A group that
// reads no more holds up its topic until its row in outbox_offsets is deleted.
//
// Tables: outbox, outbox_offsets, numbering_mark.
package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

// Names of the metadata that every message carries.
const (
	MetadataType          = "type"
	MetadataOrderingKey   = "ordering_key"
	MetadataPartition     = "partition_key" // where the message has one
	MetadataCorrelationID = "correlation_id"
	MetadataCausationID   = "causation_id"
	MetadataTraceparent   = "traceparent" // where there is a trace, as W3C Trace Context has it
)

// Message is what waits in the outbox.
type Message struct {
	Topic       string
	ID          string // 1 to 36 characters, unique per message; Watermill's UUID
	Type        string
	OrderingKey string            // an inbox handles messages of one key one at a time; at most MaxOrderingKey bytes
	Partition   string            // an inbox lets one partition use a part of its slots; may be empty
	Payload     []byte            // at most MaxPayload bytes
	Metadata    map[string]string // beyond the type and the ordering key; no NUL; at most 1 MiB as jsonb
}

// The longest ordering key and payload, in bytes. A receiver finds the messages of a key by an
// index, and a page is one value of JSON: neither can have any length.
const (
	MaxOrderingKey = 255
	MaxPayload     = 64 << 20
)

var (
	errKeyTooLong     = fmt.Errorf("the ordering key has more than %d bytes", MaxOrderingKey)
	errPayloadTooLong = fmt.Errorf("the payload has more than %d bytes", MaxPayload)
	errNoTopic        = errors.New("it has no topic")
	errBadID          = errors.New("the id does not have 1 to 36 characters")
)

const insertMessage = `
insert into outbox
       (topic, message_id, payload, metadata)
values ($1, $2, $3, $4)`

const insertMessages = `
insert into outbox
       (topic, message_id, payload, metadata)
select *
  from unnest($1::text[], $2::text[], $3::bytea[], $4::jsonb[])`

// Append queues a message into the batch that causes it, which is committed as one
// transaction. A message without a topic or an id, with a longer ordering key than
// MaxOrderingKey, or a longer payload than MaxPayload, is refused, and nothing is queued.
func Append(b *pgx.Batch, m Message) error {
	switch n := utf8.RuneCountInString(m.ID); {
	case m.Topic == "":
		return fmt.Errorf("append message %s: %w", m.ID, errNoTopic)
	case n < 1 || n > 36:
		return fmt.Errorf("append message %q: %w", m.ID, errBadID)
	case len(m.OrderingKey) > MaxOrderingKey:
		return fmt.Errorf("append message %s: %w", m.ID, errKeyTooLong)
	case len(m.Payload) > MaxPayload:
		return fmt.Errorf("append message %s: %w", m.ID, errPayloadTooLong)
	}
	metadata := make(map[string]string, len(m.Metadata)+3)
	maps.Copy(metadata, m.Metadata)
	metadata[MetadataType], metadata[MetadataOrderingKey] = m.Type, m.OrderingKey
	if m.Partition != "" {
		metadata[MetadataPartition] = m.Partition
	}
	encoded, err := json.Marshal(metadata)
	if err != nil {
		return fmt.Errorf("encode the metadata of message %s: %w", m.ID, err)
	}
	payload := m.Payload
	if payload == nil {
		payload = []byte{} // an empty message, not a missing one
	}
	b.Queue(insertMessage, m.Topic, m.ID, payload, encoded)
	return nil
}

// Send is Append for a transaction: it inserts the messages in their order. Nothing is durable
// until tx is committed. After an error tx can only be rolled back.
func Send(ctx context.Context, tx pgx.Tx, messages ...Message) error {
	b := &pgx.Batch{}
	for _, m := range messages {
		if err := Append(b, m); err != nil {
			return err
		}
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("send %d messages: %w", len(messages), err)
	}
	return nil
}

// HasMessages reports whether a batch holds a message: once it is committed, subscribers have
// something to read.
func HasMessages(b *pgx.Batch) bool {
	return slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool { return q.SQL == insertMessage })
}

// Writes are the statements of this package that may share a commit.
func Writes() []groupcommit.Statement {
	return []groupcommit.Statement{{SQL: insertMessage, ManyRows: insertMessages}}
}
