package inbox

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
)

// delivery is a message on its way to a receiver, and stands for so many more of
// the same payload.
type delivery struct {
	receiver string
	message  Message
	metadata string
	hash     [sha256.Size]byte
	more     int32
}

// deliveries are those of a message to its receivers.
func deliveries(receivers []string, m Message) ([]delivery, error) {
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
	d := delivery{message: m, metadata: string(metadata), hash: sha256.Sum256(m.Payload)}
	all := make([]delivery, 0, len(receivers))
	for i, receiver := range receivers {
		if !slices.Contains(receivers[:i], receiver) {
			d.receiver = receiver
			all = append(all, d)
		}
	}
	return all, nil
}

// received are the arguments of receive.
func received(all []delivery) []any {
	receivers, ids, keys, types := make([]string, len(all)), make([]string, len(all)), make([]string, len(all)), make([]string, len(all))
	payloads, metadata, hashes, more := make([][]byte, len(all)), make([]string, len(all)), make([][]byte, len(all)), make([]int32, len(all))
	for i, d := range all {
		receivers[i], ids[i], keys[i], types[i] = d.receiver, d.message.ID, d.message.OrderingKey, d.message.Type
		payloads[i], metadata[i], hashes[i], more[i] = d.message.Payload, d.metadata, d.hash[:], d.more
	}
	return []any{receivers, ids, keys, types, payloads, metadata, hashes, more}
}

// A page may bring a message more than once. Its first delivery decides whether it
// is new, and what of it is kept; the others are counted, or put aside, by
// statements that follow in the same transaction and find it there. So a page has
// the effect of its messages one after another.

type identity struct{ receiver, message string }

// apart takes of each message the first delivery, so that no statement meets it
// twice. Both parts keep their order.
func apart(all []delivery) (now, later []delivery) {
	seen := make(map[identity]bool, len(all))
	now = make([]delivery, 0, len(all))
	for _, d := range all {
		if id := (identity{d.receiver, d.message.ID}); seen[id] {
			later = append(later, d)
		} else {
			seen[id] = true
			now = append(now, d)
		}
	}
	return now, later
}

// together makes one of deliveries of the same message with the same payload, so
// that however often a page has it, it takes one statement more.
func together(all []delivery) (fewer []delivery) {
	type content struct {
		identity
		hash [sha256.Size]byte
	}
	at := make(map[content]int, len(all))
	for _, d := range all {
		c := content{identity{d.receiver, d.message.ID}, d.hash}
		if i, known := at[c]; known {
			fewer[i].more++
		} else {
			at[c] = len(fewer)
			fewer = append(fewer, d)
		}
	}
	return fewer
}
