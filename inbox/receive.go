package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Envelope is what the inbox needs to know of a message beside its id and payload. It is
// read from the message and depends on nothing else.
type Envelope struct {
	Type        string
	OrderingKey string // the message's id where empty; see Receive for a longer one
	Partition   string // such as a tenant; see Message
}

// Reception is what became of a message or of a page: deliveries, of which a message has
// one for each of its receivers.
type Reception struct {
	New        int // stored
	Duplicates int // known, with the same payload: counted
	Aside      int // known, with another payload: quarantined
}

// MaxLength is the length of the longest id and of the longest ordering key and partition,
// in bytes. Indexes hold them, and cannot hold texts of any length.
const MaxLength = 255

// Errors of Accept, wrapped, for a message that would break its batch.
var (
	errNotStorable = errors.New("the id is missing, or a text holds NUL or is not UTF-8")
	errTooLong     = fmt.Errorf("the id, the ordering key or the partition has more than %d bytes", MaxLength)
)

// Receive returns a function that stores a page of messages for the receiver of p, in a
// transaction of its own. When it returns nil the messages are durable, and the caller
// acknowledges the page to its transport: a page that is redelivered changes nothing but
// the count of duplicates. After an error the transport delivers the page again.
//
// While p runs, a message for which it has a free slot is stored as claimed, and its
// handler starts as soon as the commit is confirmed. A message for which only its
// partition has no slot is held back. The others wait for a claim.
//
// A page accepts whatever a transport can hold, since what could not be stored would block
// it for ever. An ordering key or a partition that is longer than MaxLength or no text is
// stored as "sha256:" and its hexadecimal hash, so equal ones stay equal. A message for
// which envelope returns false is skipped.
//
// observe, where set, is called with what became of each page that was stored.
//
// If we die here: before the commit nothing is stored, and after it nothing is
// acknowledged; the transport delivers the page again. A message that was stored as
// claimed and did not start is claimed again when its lease expires. Tests:
// TestACutPageIsReceivedOnce, TestReceive/what_a_process_stored_and_did_not_start_is_taken_over.
func (p *Processor) Receive(envelope func(*message.Message) (Envelope, bool), observe func(Reception)) func(context.Context, []*message.Message) error {
	return func(ctx context.Context, messages []*message.Message) error {
		page, err := pageOf(messages, envelope)
		if err != nil || len(page) == 0 {
			return err
		}
		r := p.state()
		reception, err := r.store(ctx, page, r.reserve(page))
		if postgres.Constraint(err) == "inbox_one_running_per_key" {
			// A message of one of the keys started elsewhere at the same moment.
			reception, err = r.store(ctx, page, reservation{})
		}
		if err != nil {
			return err
		}
		if observe != nil {
			observe(reception)
		}
		return nil
	}
}

// Accept queues the reception of a message that did not come through the outbox into a
// batch, by the rules of Receive: a first delivery is stored and wakes its key, a repeated
// one is counted, another payload under a known id is quarantined. It does no I/O. A batch
// that rolls back has received nothing, and the sender has to repeat it.
//
// Accept refuses text that PostgreSQL cannot hold, and an id, an ordering key or a
// partition longer than MaxLength. The statements after it in the batch are planned
// without scans of whole tables.
func Accept(b *pgx.Batch, receiver string, m Message) error {
	return AcceptInto(b, receiver, m, nil)
}

// AcceptInto is Accept that also fills r with what became of the message, once the batch
// is committed.
func AcceptInto(b *pgx.Batch, receiver string, m Message, r *Reception) error {
	texts := []string{receiver, m.ID, m.OrderingKey, m.Partition, m.Type}
	for name, value := range m.Metadata {
		texts = append(texts, name, value)
	}
	for _, text := range texts {
		if m.ID == "" || !isText(text) {
			return fmt.Errorf("accept message %q for %q: %w", m.ID, receiver, errNotStorable)
		}
	}
	if max(len(m.ID), len(m.OrderingKey), len(m.Partition)) > MaxLength {
		return fmt.Errorf("accept message %.*q for %q: %w", MaxLength, m.ID, receiver, errTooLong)
	}
	d, err := deliver(m)
	if err != nil {
		return err
	}
	queueStore(b, storing{receiver: receiver, page: []delivery{d}}, func(layer []delivery, rows []storedRow) {
		if r != nil {
			*r = Reception{}
			r.count(layer, rows)
		}
	})
	return nil
}

// MadeDue tells whether a batch makes a message due for which this process may have no
// slot: one that was accepted, or one that a stopping processor released.
func MadeDue(b *pgx.Batch) bool {
	return slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool {
		return q.SQL == release || q.SQL == store && q.Arguments[storeHolder] == ""
	})
}

// delivery is a message before it is stored.
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

// pageOf returns the deliveries of a page, in its order.
func pageOf(messages []*message.Message, envelope func(*message.Message) (Envelope, bool)) ([]delivery, error) {
	page := make([]delivery, 0, len(messages))
	for _, m := range messages {
		e, ours := envelope(m)
		if !ours {
			continue
		}
		d, err := deliver(Message{
			ID: m.UUID, Type: asText(e.Type), OrderingKey: indexable(e.OrderingKey), Partition: indexable(e.Partition),
			Payload: m.Payload, Metadata: m.Metadata,
		})
		if err != nil {
			return nil, err
		}
		page = append(page, d)
	}
	return page, nil
}

// indexable returns the key, or its hash where the inbox cannot hold it.
func indexable(key string) string {
	if len(key) <= MaxLength && isText(key) {
		return key
	}
	hash := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(hash[:])
}

// isText tells whether PostgreSQL can hold s as text.
func isText(s string) bool { return !strings.ContainsRune(s, 0) && utf8.ValidString(s) }

// asText returns the part of s that PostgreSQL can hold as text.
func asText(s string) string { return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD") }

// reservation is the slots of a page.
type reservation struct {
	slots    map[string]string // the partition of each message that has a slot, by message id
	heldBack map[string]bool   // messages that only their partition's share refused, by message id
}

// reserve takes slots for messages of a page: of each key for the first.
func (r *run) reserve(page []delivery) reservation {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys, ids := make(map[string]bool, len(page)), make(map[string]bool, len(page))
	reserved := reservation{slots: make(map[string]string, len(page)), heldBack: map[string]bool{}}
	for _, d := range page {
		m := d.message
		if ids[m.ID] || keys[m.OrderingKey] {
			ids[m.ID] = true
			continue
		}
		ids[m.ID] = true
		keys[m.OrderingKey] = true
		taken, held := r.slots.takeFor(m.Partition)
		switch {
		case taken:
			reserved.slots[m.ID] = m.Partition
		case held:
			reserved.heldBack[m.ID] = true
			r.holdBack(m.Partition)
		}
	}
	r.handlers.Add(len(reserved.slots))
	return reserved
}

// withdraw returns the slots in which nothing was started.
func (r *run) withdraw(reserved reservation) {
	for _, partition := range reserved.slots {
		r.slots.leave(partition)
		r.handlers.Done()
	}
}

// store commits a page, starts what was stored as running, and returns the other slots.
func (r *run) store(ctx context.Context, page []delivery, reserved reservation) (Reception, error) {
	defer r.withdraw(reserved)
	var reception Reception
	var started []claimed
	waits := false
	b := &pgx.Batch{}
	queueStore(b, storing{
		receiver: r.Receiver, page: page, reserved: reserved,
		holder: r.Holder, lease: r.Policy.Lease, passes: r.Policy.Parked == Pass,
	}, func(layer []delivery, rows []storedRow) {
		reception.count(layer, rows)
		messages := make(map[string]Message, len(layer))
		for _, d := range layer {
			messages[d.message.ID] = d.message
		}
		for _, row := range rows {
			if row.Started {
				started = append(started, claimed{
					Delivery: Delivery{Message: messages[row.MessageID], Attempt: 1, row: row.ID, fence: 1, claimed: row.At},
					fits:     true, onReceipt: true,
				})
			}
			waits = waits || row.New && !row.Started
		}
	})
	if err := r.DB.Commit(ctx, b); err != nil {
		return Reception{}, fmt.Errorf("receive %d messages for %s: %w", len(page), r.Receiver, err)
	}
	r.begin(ctx, started, reserved)
	if waits {
		r.look()
	}
	return reception, nil
}

// begin starts what a page has stored as running, in the slots that are reserved for it.
// A processor that stops releases the messages instead.
func (r *run) begin(ctx context.Context, started []claimed, reserved reservation) {
	r.observeClaimed(started)
	r.mu.Lock()
	stopping := r.stopping
	for _, c := range started {
		if !stopping {
			r.start(c) //nolint:contextcheck // a handler outlives the page that started it
			delete(reserved.slots, c.ID)
			r.handlers.Done() // the handler has counted itself
		}
	}
	r.mu.Unlock()
	if stopping {
		r.release(ctx, started)
	}
}

func (r *Reception) count(layer []delivery, rows []storedRow) {
	for _, row := range rows {
		if row.New {
			r.New++
		} else {
			r.Duplicates++
		}
	}
	r.Aside += len(layer) - len(rows)
}
