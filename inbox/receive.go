package inbox

import (
	"crypto/sha256"
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
	OrderingKey string // the message's id where empty
}

// One total, idempotent statement. A first delivery is inserted; a repeated one
// is counted; a known id with another payload goes to quarantine. The insert
// neither waits for a holder of the row nor raises an error beside a rival.
const receive = `
with incoming as (
  select unnest($1::text[]) as receiver
), first as (
  insert into inbox
         (receiver, message_id, ordering_key, type, payload, metadata, payload_hash)
  select i.receiver, $2, $3, $4, $5, $6, $7
    from incoming i
   where not exists (
           select
             from inbox known
            where known.receiver = i.receiver
              and known.message_id = $2)
  on conflict (receiver, message_id) do nothing
), repeated as (
  update inbox known
     set duplicates = known.duplicates + 1
    from incoming i
   where known.receiver = i.receiver
     and known.message_id = $2
     and known.payload_hash = $7
)
insert into inbox_quarantine
       (receiver, message_id, payload, metadata, payload_hash)
select i.receiver, $2, $5, $6, $7
  from incoming i
  join inbox known
    on known.receiver = i.receiver
   and known.message_id = $2
   and known.payload_hash <> $7
on conflict (receiver, message_id, payload_hash) do nothing`

// Receive is the Watermill handler that takes messages into the inbox. It works
// in the subscriber's own transaction, so that the row and the offset commit
// together, and does nothing but one statement there.
//
// If we die here: the transaction rolls back, the offset with it, and the page
// is read again.
func Receive(log *slog.Logger, envelope func(*message.Message) Envelope) message.NoPublishHandlerFunc {
	return func(m *message.Message) error {
		tx, ok := wsql.TxFromContext(m.Context())
		if !ok {
			return fmt.Errorf("receive message %s: it does not come from an outbox subscriber", m.UUID)
		}
		e := envelope(m)
		if len(e.Receivers) == 0 {
			return nil
		}
		if e.OrderingKey == "" {
			e.OrderingKey = m.UUID
		}
		metadata, err := json.Marshal(m.Metadata)
		if err == nil {
			hash := sha256.Sum256(m.Payload)
			_, err = tx.ExecContext(m.Context(), receive,
				e.Receivers, m.UUID, e.OrderingKey, e.Type, []byte(m.Payload), metadata, hash[:])
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
