package outbox

import (
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Messages returns the messages of a page that a subscriber has handed over, in their order,
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
