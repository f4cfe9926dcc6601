// Package outbox stores a message in the transaction that causes it: the message exists if and only
// if that transaction commits. Subscribers read it through Watermill; Forward publishes it to any
// broker. A program that commits and then publishes loses messages when it dies in between, and one
// that publishes first sends messages of transactions that roll back.
//
//	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		// … what the transaction decides
//		return outbox.Send(ctx, tx, outbox.Message{Topic: "orders", ID: id, Payload: body})
//	})
//
//	err = outbox.Forward(ctx, outbox.NewSubscriber(pool, outbox.Options{}), "orders", kafka)
//
// # Guarantees
//
//	a message exists exactly if its transaction does   one row of that transaction
//	it is delivered until it is acknowledged           only the acknowledgment deletes the row
//	what depends on a message has a greater id         its id exceeds all that its transaction has seen
//
// A page has its messages in the order of their ids. A message that commits after greater ids were read comes
// with the next page; if 2,000 ids have passed it, with the next full scan, within two seconds. Messages
// that depend on it may come first. No open transaction of others keeps a message from delivery.
//
// # Limits
//
// Delivery is at least once: the receiver drops repetitions by the message's id, as package
// inbox does. A topic has one reader; a message for two readers is sent to two topics. A
// message that its receiver refuses holds up those behind it in its topic: an inbox has dead
// letters, and so may a publisher.
//
// Tables: outbox, outbox_topics.
package outbox

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

//go:embed schema.sql
var schema string

// Schema returns the SQL that creates the tables, which need no other one, in the first schema of
// the search_path.
func Schema() string { return schema }

// Names of the metadata that every message carries.
const (
	MetadataType          = "type"
	MetadataOrderingKey   = "ordering_key"
	MetadataPartition     = "partition_key" // where the message has one
	MetadataCorrelationID = "correlation_id"
	MetadataCausationID   = "causation_id"
	MetadataTraceparent   = "traceparent" // where there is a trace, as W3C Trace Context has it
)

// Message is what waits in the outbox. Topic and ID are not empty; ID, Type, OrderingKey and
// Partition have at most 255 bytes of UTF-8 without NUL, as an inbox stores them.
type Message struct {
	Topic       string
	ID          string // unique per message; Watermill's UUID
	Type        string
	OrderingKey string            // an inbox handles messages of one key one at a time
	Partition   string            // an inbox lets one partition use a part of its slots; may be empty
	Payload     []byte            // at most MaxPayload bytes
	Metadata    map[string]string // beyond the type and the ordering key; no NUL; at most 1 MiB as jsonb
}

// MaxPayload is the longest payload, in bytes.
const MaxPayload = 64 << 20

const maxLength = 255 // bytes, as in an inbox

// ErrInvalid is returned, wrapped, for a message that no outbox can hold.
var ErrInvalid = errors.New("a message needs a topic, an id, at most 255 bytes of text in id, type, ordering key and partition, and a payload of at most 64 MiB")

const insertMessage = `
-- outbox.insertMessage
insert into outbox
       (topic, message_id, payload, metadata)
values ($1, $2, $3, $4)`

const insertMessages = `
-- outbox.insertMessage
insert into outbox
       (topic, message_id, payload, metadata)
select *
  from unnest($1::text[], $2::text[], $3::bytea[], $4::jsonb[])`

// Append queues a message into the batch that causes it. A message that cannot be held is
// ErrInvalid, and nothing is queued. Metadata that cannot be held refuses the commit.
func Append(b *pgx.Batch, m Message) error {
	invalid := m.Topic == "" || m.ID == "" || len(m.Payload) > MaxPayload
	for _, text := range []string{m.ID, m.Type, m.OrderingKey, m.Partition} {
		invalid = invalid || len(text) > maxLength || !utf8.ValidString(text) || strings.Contains(text, "\x00")
	}
	if invalid {
		return fmt.Errorf("append message %q: %w", m.ID, ErrInvalid)
	}
	metadata := make(map[string]string, len(m.Metadata)+3)
	maps.Copy(metadata, m.Metadata)
	metadata[MetadataType], metadata[MetadataOrderingKey] = m.Type, m.OrderingKey
	if m.Partition != "" {
		metadata[MetadataPartition] = m.Partition
	}
	encoded, _ := json.Marshal(metadata) // texts have no error
	// Bytes are bytea where pgx asks for no type.
	b.Queue(insertMessage, m.Topic, m.ID, append([]byte{}, m.Payload...), string(encoded))
	return nil
}

// Send is Append for a transaction. Nothing is durable until tx is committed.
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

// Writes are the statements of this package that may share a commit. A message wakes what
// waits for its topic.
func Writes() []groupcommit.Statement {
	return []groupcommit.Statement{{SQL: insertMessage, ManyRows: insertMessages, Wakes: func(a []any) string { return fmt.Sprint(a[0]) }}}
}
