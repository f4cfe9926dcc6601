package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Messages are those of a page that a subscriber has handed over, in their order,
// each with its own id and metadata, and in the page's context. They are
// acknowledged as the page is: all or none.
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

// ByPage makes a Watermill handler of one that takes the messages of a page. handle has no part
// in the subscriber's transaction: it returns nil only for what it has made durable. If it
// returns an error or panics, the page is delivered again, with half of its messages, down to
// one: so a message that cannot be received holds up those behind it and none before it. The
// first failure of a page is logged, then one line a minute.
//
// If we die here: the offset has not moved, and the page is delivered again.
func ByPage(log *slog.Logger, handle func(ctx context.Context, page []*message.Message) error) message.NoPublishHandlerFunc {
	log = logged(log)
	failed := &failures{now: time.Now} //nolint:forbidigo // it decides nothing but which failure is logged
	return func(m *message.Message) error {
		page, err := Messages(m)
		if err == nil {
			err = safely(func() error { return handle(m.Context(), page) })
		}
		if err == nil {
			if n := failed.ended(true); n > 0 {
				log.Info("receiving works again", "failures", n)
			}
			return nil
		}
		if n := failed.failed(); n > 0 {
			log.Warn("receive failed, the page will be delivered again", "message_id", m.UUID, "messages", len(page), "error", err, "failures", n)
		}
		failed.ended(false)
		tx, ok := wsql.TxFromContext(m.Context())
		if !ok {
			return err
		}
		// Watermill would deliver a refused page again inside its open transaction, which
		// holds back the readers of all topics, until the deadline. In a transaction that is
		// rolled back the offset cannot move, so the acknowledgment fails.
		_ = tx.Rollback() // it fails only if the transaction has ended already
		return nil
	}
}

// safely calls what may panic, and makes an error of it.
func safely(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return call()
}
