package inbox

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
)

// delivery is a message on its way to a receiver, so many times.
type delivery struct {
	receiver string
	message  Message
	metadata string
	hash     [sha256.Size]byte
	times    int32
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
	d := delivery{message: m, metadata: string(metadata), hash: sha256.Sum256(m.Payload), times: 1}
	all := make([]delivery, 0, len(receivers))
	for i, receiver := range receivers {
		if !slices.Contains(receivers[:i], receiver) {
			d.receiver = receiver
			all = append(all, d)
		}
	}
	return all, nil
}

// received are the arguments of receive. Where nothing is offered, the arrays of
// offers are shorter than the others, which makes them null.
func received(all []delivery, o offers) []any {
	keys, types := make([]string, len(all)), make([]string, len(all))
	for i, d := range all {
		keys[i], types[i] = d.message.OrderingKey, d.message.Type
	}
	c := columnsOf(all)
	return []any{c.receivers, c.ids, keys, types, c.payloads, c.metadata, c.hashes, o.holders, o.leases, o.passes}
}

type columns struct {
	receivers, ids, metadata []string
	payloads, hashes         [][]byte
}

func columnsOf(all []delivery) columns {
	c := columns{
		receivers: make([]string, len(all)), ids: make([]string, len(all)), metadata: make([]string, len(all)),
		payloads: make([][]byte, len(all)), hashes: make([][]byte, len(all)),
	}
	for i, d := range all {
		c.receivers[i], c.ids[i], c.metadata[i] = d.receiver, d.message.ID, d.metadata
		c.payloads[i], c.hashes[i] = d.message.Payload, d.hash[:]
	}
	return c
}

// A page may bring a message more than once. Its first delivery decides whether it
// is new, and what of it is kept. Then its row is there, and locked: the others are
// counted, or put aside, whatever their payloads. So a page has the effect of its
// messages one after another.
const repeat = `
with repeated as (
  select d.receiver,
         d.message_id,
         d.payload,
         d.metadata,
         d.payload_hash,
         d.times,
         (select k.id
            from inbox k
           where k.receiver = d.receiver
             and k.message_id = d.message_id
             and k.payload_hash = d.payload_hash) as known
    from unnest($1::text[], $2::text[], $3::bytea[], $4::text[], $5::bytea[], $6::int[])
      as d (receiver, message_id, payload, metadata, payload_hash, times)
), counted as (
  update inbox
     set duplicates = duplicates + (select r.times from repeated r where r.known = inbox.id)
   where id = any (array(select known from repeated))
), aside as (
  insert into inbox_quarantine
         (receiver, message_id, payload, metadata, payload_hash)
  select receiver, message_id, payload, metadata::jsonb, payload_hash
    from repeated
   where known is null
  on conflict (receiver, message_id, payload_hash) do nothing
)
select 0 as new,
       coalesce(sum(times) filter (where known is not null), 0) as duplicates,
       coalesce(sum(times) filter (where known is null), 0) as aside
  from repeated`

// repeated are the arguments of repeat.
func repeated(all []delivery) []any {
	times := make([]int32, len(all))
	for i, d := range all {
		times[i] = d.times
	}
	c := columnsOf(all)
	return []any{c.receivers, c.ids, c.payloads, c.metadata, c.hashes, times}
}

// apart parts the first delivery of each message from those that come again, of
// which those with the same payload are one.
func apart(all []delivery) (first, again []delivery) {
	type identity struct{ receiver, message string }
	type content struct {
		identity
		hash [sha256.Size]byte
	}
	seen, at := make(map[identity]bool, len(all)), map[content]int{}
	first = make([]delivery, 0, len(all))
	for _, d := range all {
		id := identity{d.receiver, d.message.ID}
		c := content{id, d.hash}
		if !seen[id] {
			seen[id] = true
			first = append(first, d)
		} else if i, known := at[c]; known {
			again[i].times++
		} else {
			at[c] = len(again)
			again = append(again, d)
		}
	}
	return first, again
}
