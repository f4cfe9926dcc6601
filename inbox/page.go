package inbox

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
)

// delivery is a message on its way into the inbox.
type delivery struct {
	message  Message
	metadata string
	hash     [sha256.Size]byte
}

func deliver(m Message) (delivery, error) {
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
		return delivery{}, fmt.Errorf("encode the metadata of message %s: %w", m.ID, err)
	}
	return delivery{message: m, metadata: string(metadata), hash: sha256.Sum256(m.Payload)}, nil
}

// layers parts a page so that no layer has an id twice, in the page's order: the first
// delivery of each message, then the second of those that have one, and so on. One
// statement may not meet a row twice.
func layers(page []delivery) [][]delivery {
	var all [][]delivery
	seen := make(map[string]int, len(page))
	for _, d := range page {
		n := seen[d.message.ID]
		seen[d.message.ID]++
		if n == len(all) {
			all = append(all, make([]delivery, 0, len(page)))
		}
		all[n] = append(all[n], d)
	}
	return all
}

// columns are the arrays that a page is stored from.
type columns struct {
	ids, keys, types, metadata []string
	payloads, hashes           [][]byte
	reserved                   []bool
}

func columnsOf(page []delivery, reserved map[string]bool) columns {
	n := len(page)
	c := columns{
		ids: make([]string, n), keys: make([]string, n), types: make([]string, n), metadata: make([]string, n),
		payloads: make([][]byte, n), hashes: make([][]byte, n), reserved: make([]bool, n),
	}
	for i, d := range page {
		c.ids[i], c.keys[i], c.types[i], c.metadata[i] = d.message.ID, d.message.OrderingKey, d.message.Type, d.metadata
		c.payloads[i], c.hashes[i], c.reserved[i] = d.message.Payload, d.hash[:], reserved[d.message.ID]
	}
	return c
}
