package outbox

import (
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"
)

// enveloped is a message of a page, as selectPage writes it.
type enveloped struct {
	ID       string          `json:"id"`
	Metadata json.RawMessage `json:"metadata"`
	Payload  []byte          `json:"payload"`
}

// Messages are those of a page that a subscriber has handed over, in their order,
// each with its own id and metadata, and in the page's context. They are
// acknowledged as the page is: all or none.
func Messages(page *message.Message) ([]*message.Message, error) {
	var all []enveloped
	if err := json.Unmarshal(page.Payload, &all); err != nil {
		return nil, fmt.Errorf("read the page that ends with message %s: %w", page.UUID, err)
	}
	messages := make([]*message.Message, len(all))
	for i, e := range all {
		m := message.NewMessage(e.ID, e.Payload)
		if err := json.Unmarshal(e.Metadata, &m.Metadata); err != nil || m.Metadata == nil {
			// Metadata that is not strings to strings was put there by somebody else.
			// Without it the message still reaches its receiver's quarantine; an error
			// here would block the topic for ever.
			m.Metadata = message.Metadata{}
		}
		m.SetContext(page.Context())
		messages[i] = m
	}
	return messages, nil
}

// ByPage makes a Watermill handler of one that takes the messages of a page. If it
// returns an error, all that was written in the page's transaction is rolled back,
// and the page is read again, with fewer messages (see pace).
//
// If we die here: the transaction rolls back, the offset with it, and the page is
// read again.
func ByPage(log *slog.Logger, handle func(page []*message.Message) error) message.NoPublishHandlerFunc {
	return func(m *message.Message) error {
		tx, ok := TxFromContext(m)
		if !ok {
			return fmt.Errorf("handle message %s: it does not come from an outbox subscriber", m.UUID)
		}
		page, err := Messages(m)
		if err == nil {
			err = handle(page)
		}
		if err != nil {
			// A Nack would be resent inside the broken transaction until the deadline,
			// and a commit would move the offset past what was not written. Rolled back
			// and acked, the page fails at its offset and is read again.
			log.Warn("receive failed, the page will be read again", "message_id", m.UUID, "messages", len(page), "error", err)
			_ = tx.Rollback() // it fails only if the transaction is gone already
		}
		return nil
	}
}
