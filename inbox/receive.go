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
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
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
// acknowledges the page to its transport. After an error the transport delivers the page
// again, which changes nothing but the count of duplicates.
//
// While p runs, a message for which it has a free slot is stored as claimed, and its
// handler starts as soon as the commit is confirmed. A message for which only its
// partition has no slot is held back. The others wait for a claim.
//
// A page accepts whatever a transport can hold, since what could not be stored would block
// it for ever. An ordering key or a partition that is longer than MaxLength or no text is
// stored as "sha256:" and its hexadecimal hash, so equal ones stay equal. A message for
// which envelope returns false is skipped. observe, where set, is called with what became
// of each page that was stored.
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
		r.reserve(page)
		err = r.store(ctx, page)
		if groupcommit.Constraint(err) == "inbox_one_running_per_key" {
			// A message of one of the keys started elsewhere at the same moment.
			err = r.store(ctx, page)
		}
		if err != nil {
			return err
		}
		if observe != nil {
			observe(receptionOf(page))
		}
		return nil
	}
}

// Accept queues the reception of a message that did not come through the outbox into a
// batch, by the rules of Receive. It does no I/O. A batch that rolls back has received
// nothing, and the sender has to repeat it.
//
// Accept refuses text that PostgreSQL cannot hold, and an id, an ordering key or a
// partition longer than MaxLength.
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
	if m.ID == "" || slices.ContainsFunc(texts, func(text string) bool { return !isText(text) }) {
		return fmt.Errorf("accept message %q for %q: %w", m.ID, receiver, errNotStorable)
	}
	if max(len(m.ID), len(m.OrderingKey), len(m.Partition)) > MaxLength {
		return fmt.Errorf("accept message %.*q for %q: %w", MaxLength, m.ID, receiver, errTooLong)
	}
	d, err := incomingOf(m)
	if err != nil {
		return err
	}
	page := []*incoming{d}
	last := queueStore(b, receiver, "", Policy{}, page)
	if r != nil {
		last.Exec(func(pgconn.CommandTag) error { *r = receptionOf(page); return nil })
	}
	return nil
}

// MadeDue tells whether a batch makes a message due for which this process may have no
// slot: one that was accepted, or one that a stopping processor released.
func MadeDue(b *pgx.Batch) bool {
	return slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool {
		return q.SQL == endClaim && q.Arguments[endClaimPause] == time.Duration(0) || q.SQL == store && q.Arguments[storeHolder] == ""
	})
}

// incoming is a message that is received.
type incoming struct {
	Message

	metadata string
	hash     []byte
	reserved bool // a slot, to start in
	heldBack bool // only its partition's share refused a slot
	stored   storedRow
}

func incomingOf(m Message) (*incoming, error) {
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
	hash := sha256.Sum256(m.Payload)
	return &incoming{Message: m, metadata: string(metadata), hash: hash[:]}, nil
}

// pageOf returns the messages of a page, in its order.
func pageOf(messages []*message.Message, envelope func(*message.Message) (Envelope, bool)) ([]*incoming, error) {
	page := make([]*incoming, 0, len(messages))
	for _, m := range messages {
		e, ours := envelope(m)
		if !ours {
			continue
		}
		d, err := incomingOf(Message{
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

// receptionOf counts what became of a page that was stored.
func receptionOf(page []*incoming) (r Reception) {
	for _, d := range page {
		switch {
		case d.stored.ID == 0:
			r.Aside++
		case d.stored.New:
			r.New++
		default:
			r.Duplicates++
		}
	}
	return r
}

// reserve takes slots for messages of a page: of each key for the first.
func (r *run) reserve(page []*incoming) {
	keys, ids := make(map[string]bool, len(page)), make(map[string]bool, len(page))
	for _, d := range page {
		if !ids[d.ID] && !keys[d.OrderingKey] {
			keys[d.OrderingKey] = true
			d.reserved, d.heldBack = r.slots.reserve(d.Partition)
		}
		ids[d.ID] = true
	}
}

// store commits a page, starts what was stored as running, and returns the other slots.
func (r *run) store(ctx context.Context, page []*incoming) error {
	defer func() {
		for _, d := range page {
			if d.reserved {
				d.reserved = false
				r.slots.leave(d.Partition)
			}
		}
	}()
	b := &pgx.Batch{}
	queueStore(b, r.Receiver, r.Holder, r.Policy, page)
	if err := r.DB.Commit(ctx, b); err != nil {
		return fmt.Errorf("receive %d messages for %s: %w", len(page), r.Receiver, err)
	}
	var started []*Delivery
	waits := false
	for _, d := range page {
		if d.stored.Started {
			d.reserved = false // the handler has its slot
			started = append(started, &Delivery{Message: d.Message, Attempt: 1, row: d.stored.ID, fence: 1, claimed: d.stored.At, onReceipt: true})
		}
		waits = waits || d.stored.New && !d.stored.Started
	}
	r.start(ctx, started)
	if waits {
		r.look()
	}
	return nil
}
