package outbox

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// appendMessage appends a message to the payload of its page: its id, its metadata
// and its payload, each behind its length.
func appendMessage(page []byte, id string, metadata, payload []byte) []byte {
	page = append(binary.AppendUvarint(page, uint64(len(id))), id...)
	page = append(binary.AppendUvarint(page, uint64(len(metadata))), metadata...)
	return append(binary.AppendUvarint(page, uint64(len(payload))), payload...)
}

var errNoPage = errors.New("it is not a page of the outbox")

// Messages are those of a page that a subscriber has handed over, in their order,
// each with its own id and metadata, and in the page's context. They are
// acknowledged as the page is: all or none. Their payloads are parts of the page's.
func Messages(page *message.Message) ([]*message.Message, error) {
	var messages []*message.Message
	for rest := []byte(page.Payload); len(rest) > 0; {
		var parts [3][]byte
		for i := range parts {
			length, n := binary.Uvarint(rest)
			if n <= 0 || length > uint64(len(rest)-n) {
				return nil, fmt.Errorf("read message %s: %w", page.UUID, errNoPage)
			}
			end := n + int(length) //nolint:gosec // no more than there is
			parts[i], rest = rest[n:end:end], rest[end:]
		}
		m := message.NewMessage(string(parts[0]), parts[2])
		// What is no string was put there by somebody else, and becomes an empty one. The
		// rest still says where the message goes. An error here would block the topic for
		// ever.
		_ = json.Unmarshal(parts[1], &m.Metadata)
		if m.Metadata == nil {
			m.Metadata = message.Metadata{}
		}
		m.SetContext(page.Context())
		messages = append(messages, m)
	}
	return messages, nil
}

// ByPage makes a Watermill handler of one that takes the messages of a page. If it
// returns an error, all that was written in the page's transaction is rolled back,
// and the page is read again, with fewer messages (see pace). The first failure of a
// page is logged, then one line a minute.
//
// If we die here: the transaction rolls back, the offset with it, and the page is
// read again.
func ByPage(log *slog.Logger, handle func(page []*message.Message) error) message.NoPublishHandlerFunc {
	failed := &failures{now: time.Now} //nolint:forbidigo // it decides nothing but which failure is logged
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
			if n := failed.failed(m.UUID); n > 0 {
				log.Warn("receive failed, the page will be read again", "message_id", m.UUID, "messages", len(page), "error", err, "failures", n)
			}
			_ = tx.Rollback() // it fails only if the transaction is gone already
		}
		if n := failed.ended(err == nil); n > 0 {
			log.Info("receiving works again", "failures", n)
		}
		return nil
	}
}
