package inbox

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Envelope is what the inbox needs to know of a message beside its id and
// payload. It is read from the message and must not depend on anything else.
type Envelope struct {
	Receivers   []string // who takes it; nobody: the message is passed over
	Type        string
	OrderingKey string // the message's id where empty; see Receive for one that is too long
}

// One total, idempotent statement. A first delivery is inserted; a repeated one
// is counted, also where its rival is yet to commit; a known id with another
// payload goes to quarantine. Nothing of it raises an error beside a rival.
//
// A first delivery also wakes the key: the oldest open message, the only one that
// could be claimed, becomes due if it waits for the outside. One that backs off
// after errors does not, so that no flood of messages defeats the backoff.
//
// The oldest is locked also while it runs, and read as it is once it is locked:
// of this delivery and a wait that is written at the same moment, the later one
// can see the other. Nobody holds such a lock for longer than a commit.
//
// The key is compared twice, since of what is equal the order would not matter. So
// only inbox_open_by_key has the order: one entry of it is read, however long the
// queue behind a key is, and none of other keys. What is woken is an array, since a
// join was planned, while the inbox was empty, to read all of it later.
const receive = `
with incoming as (
  select distinct unnest($1::text[]) as receiver
), kept as (
  insert into inbox
         (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
  select i.receiver, $2, $3, $4, $5, $6, $7
    from incoming i
  on conflict (receiver, message_id) do update
     set duplicates = inbox.duplicates + 1
   where inbox.payload_hash = excluded.payload_hash
  returning receiver, duplicates
), oldest as (
  select o.id, o.status, o.attempts, o.waits, o.due_at
    from kept k
   cross join lateral (
           select open.id, open.status, open.attempts, open.waits, open.due_at
             from inbox open
            where open.receiver = k.receiver
              and open.ordering_key >= $3
              and open.ordering_key <= $3
              and open.status in ('pending', 'running')
            order by open.ordering_key, open.id
            limit 1
              for no key update) o
   where k.duplicates = 0
), woken as (
  update inbox
     set due_at = clock_timestamp()
   where id = any (array(
           select id
             from oldest
            where status = 'pending'
              and attempts = 0
              and waits > 0
              and due_at > clock_timestamp()))
), aside as (
  insert into inbox_quarantine
         (receiver, message_id, payload, metadata, payload_hash)
  select i.receiver, $2, $5, $6, $7
    from incoming i
   where not exists (
           select
             from kept k
            where k.receiver = i.receiver)
  on conflict (receiver, message_id, payload_hash) do nothing
)
select count(*) filter (where k.duplicates = 0) as new,
       count(*) filter (where k.duplicates > 0) as duplicates,
       count(*) filter (where k.receiver is null) as aside
  from incoming i
  left join kept k
    on k.receiver = i.receiver`

// received are the arguments of receive.
func received(receivers []string, m Message) ([]any, error) {
	if m.OrderingKey == "" {
		m.OrderingKey = m.ID
	}
	if m.Metadata == nil {
		m.Metadata = map[string]string{}
	}
	if m.Payload == nil {
		m.Payload = []byte{} // an empty message, not a missing one
	}
	metadata, err := json.Marshal(m.Metadata)
	if err != nil {
		return nil, fmt.Errorf("encode the metadata of message %s: %w", m.ID, err)
	}
	hash := sha256.Sum256(m.Payload)
	return []any{receivers, m.ID, m.OrderingKey, m.Type, m.Payload, metadata, hash[:]}, nil
}

// Receive is the Watermill handler that takes messages into the inbox. It works
// in the subscriber's own transaction, so that the row and the offset commit
// together, and does nothing but one statement there.
//
// It takes whatever is in the outbox, since what it could not take would block
// the topic for ever. An ordering key beyond MaxLength, or one that is no text,
// is received as "sha256:" and the hexadecimal hash of it; the same messages are
// of one key then as before.
//
// If we die here: the transaction rolls back, the offset with it, and the page
// is read again.
func Receive(log *slog.Logger, envelope func(*message.Message) Envelope) message.NoPublishHandlerFunc {
	return ReceiveTelling(log, envelope, nil)
}

// ReceiveTelling is Receive that also tells what became of each message, before it
// is committed: of a page that is read again, twice.
func ReceiveTelling(log *slog.Logger, envelope func(*message.Message) Envelope, told func(Reception)) message.NoPublishHandlerFunc {
	return func(m *message.Message) error {
		tx, ok := wsql.TxFromContext(m.Context())
		if !ok {
			return fmt.Errorf("receive message %s: it does not come from an outbox subscriber", m.UUID)
		}
		e := envelope(m)
		if len(e.Receivers) == 0 {
			return nil
		}
		args, err := received(e.Receivers, Message{
			ID: m.UUID, Type: asText(e.Type), OrderingKey: indexable(e.OrderingKey), Payload: m.Payload, Metadata: m.Metadata,
		})
		if err == nil {
			var r Reception
			if err = tx.QueryRowContext(m.Context(), receive, args...).Scan(&r.New, &r.Duplicates, &r.Aside); err == nil {
				r.tell(told)
			}
		}
		if err != nil {
			// A Nack would be resent inside the broken transaction until the deadline,
			// and a commit would move the offset past what was not written. Rolled back
			// and acked, the page fails at its offset and is read again.
			log.Warn("receive failed, the page will be read again", "message_id", m.UUID, "error", err)
			_ = tx.Rollback() // it fails only if the transaction is gone already
		}
		return nil
	}
}

// indexable is an ordering key that the inbox can hold, one for each that there is.
func indexable(key string) string {
	if len(key) <= MaxLength && isText(key) {
		return key
	}
	hash := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(hash[:])
}
