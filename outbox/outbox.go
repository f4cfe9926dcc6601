// Package outbox is the transactional outbox: a message waits in the commit
// that caused it, and Watermill's subscriber reads that same table. It owns
// outbox and outbox_offsets.
//
// It promises that a message exists exactly if the commit that queued it does,
// and that each consumer group sees every message at least once, in an order
// that follows the order of commits: a reader stays below the oldest
// transaction under way, so a late commit is never passed over.
//
// It does not promise exactly-once delivery; nobody can. The inbox receives.
package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

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
	OrderingKey string            // messages of one key are processed one at a time; at most MaxOrderingKey bytes
	Partition   string            // messages of one partition leave a receiver's time to the others; may be empty
	Payload     []byte            // at most MaxPayload bytes
	Metadata    map[string]string // beyond the type and the ordering key; no NUL
}

// MaxOrderingKey is the length of the longest ordering key, in bytes. A receiver
// finds the messages of a key by an index, which cannot hold a key of any length.
const MaxOrderingKey = 255

// MaxPayload is the length of the longest payload, in bytes. A page is one value in JSON, which
// PostgreSQL cannot build of any length.
const MaxPayload = 64 << 20

var (
	errKeyTooLong     = fmt.Errorf("the ordering key has more than %d bytes", MaxOrderingKey)
	errPayloadTooLong = fmt.Errorf("the payload has more than %d bytes", MaxPayload)
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

// Append queues a message into the batch that causes it. It does no I/O; a
// batch that rolls back leaves no message. A message with a longer ordering key
// than MaxOrderingKey, or a longer payload than MaxPayload, is refused here, and nothing is
// queued.
func Append(b *pgx.Batch, m Message) error {
	switch {
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

// Send is Append for a transaction of the caller: it inserts the messages, in their order. They
// exist once tx is committed, and subscribers wait for its end: of any topic they read no
// message that is younger than the oldest transaction in flight.
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

// Appended tells whether a batch holds a message: once it is committed, subscribers have
// something to read.
func Appended(b *pgx.Batch) bool {
	return slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool { return q.SQL == insertMessage })
}

// Writes are the statements of this package that may share a commit.
func Writes() []groupcommit.Statement {
	return []groupcommit.Statement{{SQL: insertMessage, Many: insertMessages}}
}
