package inbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/loop"
)

// Reception is what became of messages that were received.
type Reception struct{ New, Duplicates, DeadLetters int }

const (
	maxLength   = 255     // bytes of a receiver, id, type, ordering key and partition: indexes hold them
	maxMetadata = 8 << 20 // bytes as JSON, which escapes a byte by six at most: an outbox holds 1 MiB
	maxTries    = 3       // of a transaction that lost a race

	pageMessages = 500
	pageBytes    = 1 << 20 // of payloads; a longer message is a page of its own
	yields       = 3       // how often Consume lets other goroutines run before it takes what is ready
)

var errNotStorable = errors.New("the message has no id, or its id, type, key or partition is longer than 255 bytes or no text, or its metadata is longer than 8 MiB")

// incoming is a message that is received.
type incoming struct {
	Message

	metadata   string
	hash       []byte
	unreadable string // why it is stored as a dead letter
}

// received returns a message as it is stored: as a dead letter, named by its id and payload, where there is an error.
func received(m Message, err error) *incoming {
	metadata := make(map[string]string, len(m.Metadata))
	for name, value := range m.Metadata { // without NUL, which PostgreSQL refuses
		metadata[strings.ReplaceAll(name, "\x00", "")] = strings.ReplaceAll(value, "\x00", "")
	}
	encoded, _ := json.Marshal(metadata) // texts have no error
	hash := sha256.Sum256(m.Payload)
	d := &incoming{Message: m, hash: hash[:], metadata: string(encoded)}
	for _, text := range []string{m.ID, m.OrderingKey, m.Partition, m.Type} {
		if m.ID == "" || len(text) > maxLength || !utf8.ValidString(text) || strings.Contains(text, "\x00") {
			err = cmp.Or(err, errNotStorable)
		}
	}
	if len(encoded) > maxMetadata {
		err, d.metadata = cmp.Or(err, errNotStorable), "{}"
	}
	if err != nil {
		d.unreadable = cmp.Or(*storable(err), "unreadable")
		name := sha256.Sum256(append([]byte(m.ID), d.hash...))
		d.ID = "unreadable:" + hex.EncodeToString(name[:])
		d.OrderingKey, d.Partition, d.Type = "", "", ""
	}
	d.OrderingKey = cmp.Or(d.OrderingKey, d.ID)
	d.Payload = append([]byte{}, m.Payload...) // an empty message, not a missing one
	return d
}

// Append queues a message into the batch b that causes it, in the database of the inbox. The message
// is received, as by Receive, if and only if b commits. The same id appended again is a duplicate.
// Append does no I/O. A processor claims the message when it is woken, or within a second. A commit that is
// refused by inbox_one_first_per_key, which is rare, lost a race and may be repeated.
func Append(b *pgx.Batch, receiver string, m Message) {
	d := received(m, nil)
	b.Queue(store, receiver, d.ID, d.OrderingKey, d.Partition, d.Type, d.Payload, d.metadata, d.hash, d.unreadable)
	b.Queue(promote, receiver, d.OrderingKey)
}

// Receive stores messages in a transaction of its own, and claims for the free slots in it.
// When it returns nil they are durable, and the caller acknowledges them to their transport.
// After an error the transport delivers them again: none is stored, or some, or the outcome is unknown.
//
// A message that cannot be stored as it is, or has another payload than the one under its id, is stored as a dead letter.
//
// If we die here: before the commit nothing is stored, and after it nothing is acknowledged.
// What was claimed and did not start is taken over. Test: TestModel.
func (p *Processor) Receive(ctx context.Context, messages ...Message) (Reception, error) {
	return p.receive(ctx, column(messages, func(m Message) *incoming { return received(m, nil) }))
}

// receive stores a page in one transaction; if an id comes n times, in n.
func (p *Processor) receive(ctx context.Context, page []*incoming) (r Reception, err error) {
	var parts [][]*incoming
	times := map[string]int{}
	for _, d := range page {
		n := times[d.ID]
		times[d.ID]++
		if n == len(parts) {
			parts = append(parts, nil)
		}
		parts[n] = append(parts[n], d)
	}
	for _, part := range parts {
		stored, dead, err := p.storePage(ctx, part)
		for try := 1; isRace(err) && try < maxTries; try++ {
			stored, dead, err = p.storePage(ctx, part)
		}
		if err != nil {
			return Reception{}, fmt.Errorf("receive %d messages for %s: %w", len(part), p.Receiver, err)
		}
		r.New += stored
		r.DeadLetters += len(dead)
		for _, d := range part {
			if slices.Contains(dead, d.ID) {
				p.Log.ErrorContext(ctx, "message cannot be read: it is a dead letter",
					"receiver", p.Receiver, "message_id", d.ID, "reason", cmp.Or(d.unreadable, "the id is known with another payload"))
			}
		}
	}
	r.Duplicates = len(page) - r.New - r.DeadLetters
	if p.OnReceive != nil {
		p.OnReceive(r)
	}
	return r, nil
}

// isRace reports whether a transaction of this package was rolled back because another one was
// first, and may pass when it is repeated. A server out of reach is no race: after a failover
// only the transport knows what was not acknowledged.
func isRace(err error) bool {
	return groupcommit.Constraint(err) == "inbox_one_first_per_key" ||
		groupcommit.OutcomeOf(err).Retryable() && !errors.Is(err, groupcommit.ErrNotCommitted)
}

// storePage is one transaction: it stores a page, promotes, and claims for the free slots, see Processor.
func (p *Processor) storePage(ctx context.Context, page []*incoming) (stored int, dead []string, err error) {
	b, behind := &pgx.Batch{}, false
	receivers := slices.Repeat([]string{p.Receiver}, len(page))
	keys := column(page, func(d *incoming) string { return d.OrderingKey })
	b.Queue(storeMany, receivers,
		column(page, func(d *incoming) string { return d.ID }), keys,
		column(page, func(d *incoming) string { return d.Partition }),
		column(page, func(d *incoming) string { return d.Type }),
		column(page, func(d *incoming) []byte { return d.Payload }),
		column(page, func(d *incoming) string { return d.metadata }),
		column(page, func(d *incoming) []byte { return d.hash }),
		column(page, func(d *incoming) string { return d.unreadable }),
	).QueryRow(func(row pgx.Row) error { return row.Scan(&stored, &dead, &behind) })
	b.Queue(promoteMany, receivers, keys)
	g := p.slots.reserve(len(page)+1, true, nil) // one more than was stored: if it is filled, older messages are due too
	_, _, err = p.commitClaim(ctx, b, g)
	if behind { // the one before may have just ended, without a wake-up
		p.slots.missed.Add(1)
	}
	if g.missed != p.slots.missed.Load() {
		loop.Ring(p.woken)
	}
	return stored, dead, err
}

func column[E, T any](all []E, of func(E) T) []T {
	values := make([]T, len(all))
	for i, e := range all {
		values[i] = of(e)
	}
	return values
}

const deleteExpired = `
-- inbox.DeleteExpired
delete from inbox
 where ctid = any (array(
         select ctid
           from inbox
          where status = 'done'
            and finished_at < now() - $1::interval
          order by finished_at
          limit $2
            for update skip locked))
returning 1`

// DeleteExpired deletes up to limit messages that were done longer than retention ago, in database time, and returns
// how many; below limit, nothing was left. Retention is longer than the transport can redeliver. Dead letters and
// discarded messages stay. Several callers may call it concurrently.
func DeleteExpired(ctx context.Context, q groupcommit.Querier, retention time.Duration, limit int) (int, error) {
	rows, _ := q.Query(ctx, deleteExpired, retention, limit) // they have the error too
	deleted, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return 0, fmt.Errorf("delete done messages: %w", err)
	}
	return len(deleted), nil
}

// Read says what the inbox stores of a message. What it leaves empty is the transport's: id,
// payload and metadata, and the type, ordering key and partition that package outbox writes
// into the metadata. After an error, and after a panic, the message is stored as a dead letter.
//
// A transport that gives a message another UUID when it is sent again needs an id of the
// sender, of the business or of the content: idempotency.ParseKey, NaturalKey, Content.
type Read func(*message.Message) (Message, error)

// Consume subscribes to a topic and receives its messages until ctx ends, then it returns nil, or until the subscriber
// ends the subscription, which is an error. It takes one message, and with it those that are ready behind it. It stores
// them as Receive does, and only then acknowledges them. If they cannot be stored it refuses them, so that they are
// redelivered, and takes one, then two, and so on. read may be nil.
//
// If we die here: what was not acknowledged is redelivered. Test: TestConsume.
func (p *Processor) Consume(ctx context.Context, from message.Subscriber, topic string, read Read) error {
	deliveries, err := from.Subscribe(ctx, topic)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	open, end := context.WithCancel(ctx)
	defer end()
	most := pageMessages
	loop.Run(open, p.Log.With("receiver", p.Receiver, "topic", topic), "receive failed, the messages will be redelivered", func(context.Context) (time.Duration, error) {
		page := nextPage(open, deliveries, most)
		if len(page) == 0 {
			end()
			return 0, nil
		}
		_, err := p.receive(ctx, column(page, func(m *message.Message) *incoming { return received(readOne(m, read)) }))
		most = min(pageMessages, 2*most)
		answer := (*message.Message).Ack
		if err != nil {
			answer, most = (*message.Message).Nack, 1 // so that one that cannot be stored holds up no other
		}
		for _, m := range page {
			answer(m)
		}
		return 0, err
	})
	if ctx.Err() == nil {
		return fmt.Errorf("consume %s: the subscription ended", topic)
	}
	return nil
}

// nextPage waits for a message and returns it with those that are ready behind it; none if ctx or the channel has ended.
func nextPage(ctx context.Context, messages <-chan *message.Message, most int) (page []*message.Message) {
	select {
	case <-ctx.Done():
	case m, open := <-messages:
		if !open {
			return nil
		}
		page = append(page, m)
		for bytes, idle := len(m.Payload), 0; len(page) < most && bytes < pageBytes && idle < yields; {
			select {
			case m, open = <-messages:
				if !open {
					return page
				}
				page, bytes, idle = append(page, m), bytes+len(m.Payload), 0
			default:
				idle++
				runtime.Gosched() // a subscriber may be about to deliver
			}
		}
	}
	return page
}

func readOne(m *message.Message, read Read) (one Message, err error) {
	if read != nil {
		err = loop.Safely(func() (err error) { one, err = read(m); return err })
	}
	one.ID = cmp.Or(one.ID, m.UUID)
	if one.Payload == nil {
		one.Payload = m.Payload
	}
	if one.Metadata == nil {
		one.Metadata = m.Metadata
	}
	if one.Type == "" && one.OrderingKey == "" && one.Partition == "" {
		one.Type, one.OrderingKey, one.Partition = m.Metadata.Get("type"), m.Metadata.Get("ordering_key"), m.Metadata.Get("partition_key")
	}
	return one, err
}
