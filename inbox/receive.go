package inbox

import (
	"cmp"
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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
)

// Reception is what became of messages that were received.
type Reception struct {
	New         int // stored, those that cannot be read among them
	Duplicates  int // known, with the same payload: counted
	Quarantined int // known, with another payload: quarantined
}

// MaxLength is the length of the longest receiver, and of the longest id, ordering key and
// partition that are stored as they are, in bytes. Indexes hold them, and cannot hold texts
// of any length.
const MaxLength = 255

var errNoID = errors.New("the message has no id")

// Receive stores messages in a transaction of its own. When it returns nil they are durable,
// and the caller acknowledges them to their transport. After an error none is stored, or the
// outcome is unknown: the transport delivers them again, which changes nothing but the count
// of duplicates. Consume does so for a subscriber of Watermill.
//
// While p runs, a message for which it has a free slot is stored as claimed, and its
// handler starts as soon as the commit is confirmed. A message for which only its
// partition has no slot is held back. The others wait for a claim.
//
// Receive accepts whatever a transport can hold, since what could not be stored would block
// it for ever. An id, an ordering key or a partition that is longer than MaxLength or no
// text is stored as "sha256:" and its hexadecimal hash, so equal ones stay equal. Of other
// texts it leaves out what PostgreSQL cannot hold. A message without an id is stored as a
// dead letter, as are those that Consume cannot read.
//
// If we die here: before the commit nothing is stored, and after it nothing is
// acknowledged; the transport delivers the messages again. A message that was stored as
// claimed and did not start is claimed again when its lease expires. Tests:
// TestReceive_storesAPageOnceAfterACutConnection, TestReceive/what_a_process_stored_and_did_not_start_is_taken_over.
func (p *Processor) Receive(ctx context.Context, messages ...Message) (Reception, error) {
	r, err := p.state()
	if err != nil {
		return Reception{}, err
	}
	page := make([]*incoming, len(messages))
	for n, m := range messages {
		page[n] = received(m, nil)
	}
	return r.receive(ctx, page)
}

func (r *run) receive(ctx context.Context, page []*incoming, required ...*pgx.QueuedQuery) (Reception, error) {
	if len(page) == 0 {
		return Reception{}, nil
	}
	r.reserve(page)
	err := r.store(ctx, page, required)
	if groupcommit.Constraint(err) == "inbox_one_running_per_key" {
		// A message of one of the keys started elsewhere at the same moment.
		err = r.store(ctx, page, required)
	}
	if err != nil {
		return Reception{}, err
	}
	became := receptionOf(page)
	if r.OnReceive != nil {
		r.OnReceive(became)
	}
	return became, nil
}

// Accept queues the reception of a message, by the rules of Receive, into a batch that its
// caller commits, and returns what becomes of it, which is filled in by the commit. It does
// no I/O. A batch that rolls back has received nothing, and the sender has to repeat it.
func Accept(b *pgx.Batch, receiver string, m Message) *Reception {
	became, page := &Reception{}, []*incoming{received(m, nil)}
	queueStore(b, receiver, "", Policy{}, page).Exec(func(pgconn.CommandTag) error { *became = receptionOf(page); return nil })
	return became
}

// MakesMessagesDue reports whether a batch makes a message due for which this process may have no
// slot: one that was accepted, or one that a stopping processor released.
func MakesMessagesDue(b *pgx.Batch) bool {
	return slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool {
		return q.SQL == endClaim && q.Arguments[endClaimPause] == time.Duration(0) || q.SQL == store && q.Arguments[storeHolder] == ""
	})
}

// incoming is a message that is received.
type incoming struct {
	Message

	metadata   string
	hash       []byte
	unreadable string // why it is stored as a dead letter
	reserved   bool   // a slot, to start in
	heldBack   bool   // only its partition's share refused a slot
	stored     storedRow
}

// received returns a message in a form that can be stored, as a dead letter where there is
// an error or no id. A dead letter is named by its payload, so that a transport that repeats
// it leaves one, and so that it is not taken for a message that can be read.
func received(m Message, err error) *incoming {
	if m.Payload == nil {
		m.Payload = []byte{} // an empty message, not a missing one
	}
	hash := sha256.Sum256(m.Payload)
	d := &incoming{hash: hash[:]}
	if err == nil && m.ID == "" {
		err = errNoID
	}
	if err != nil {
		d.unreadable = storable(err.Error())
		m.ID, m.OrderingKey, m.Partition = "unreadable:"+hex.EncodeToString(d.hash), "", ""
	}
	d.Message = Message{
		ID: indexable(m.ID), Type: asText(m.Type), OrderingKey: indexable(cmp.Or(m.OrderingKey, m.ID)), Partition: indexable(m.Partition),
		Payload: m.Payload, Metadata: make(map[string]string, len(m.Metadata)),
	}
	for name, value := range m.Metadata {
		d.Metadata[asText(name)] = asText(value)
	}
	metadata, _ := json.Marshal(d.Metadata) // texts have no error
	d.metadata = string(metadata)
	return d
}

// indexable returns the key, or its hash where the inbox cannot hold it.
func indexable(key string) string {
	if len(key) <= MaxLength && isText(key) {
		return key
	}
	hash := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(hash[:])
}

// isText reports whether PostgreSQL can hold s as text.
func isText(s string) bool { return !strings.ContainsRune(s, 0) && utf8.ValidString(s) }

// asText returns the part of s that PostgreSQL can hold as text.
func asText(s string) string { return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD") }

// receptionOf counts what became of a page that was stored.
func receptionOf(page []*incoming) (r Reception) {
	for _, d := range page {
		switch {
		case d.stored.ID == 0:
			r.Quarantined++
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
		if !ids[d.ID] && !keys[d.OrderingKey] && d.unreadable == "" {
			keys[d.OrderingKey] = true
			d.reserved, d.heldBack = r.slots.reserve(d.Partition)
		}
		ids[d.ID] = true
	}
}

// store commits a page, starts what was stored as running, and returns the other slots.
func (r *run) store(ctx context.Context, page []*incoming, required []*pgx.QueuedQuery) error {
	defer func() {
		for _, d := range page {
			if d.reserved {
				d.reserved = false
				r.slots.release(d.Partition)
			}
		}
	}()
	b := &pgx.Batch{}
	for _, q := range required { // again for each try: pgx notes in a query on which connection it is prepared
		b.Queue(q.SQL, q.Arguments...)
	}
	queueStore(b, r.Receiver, r.Holder, r.Policy, page)
	if err := r.DB.Commit(ctx, b); err != nil {
		return fmt.Errorf("receive %d messages for %s: %w", len(page), r.Receiver, err)
	}
	var started []*Delivery
	waits := false
	for _, d := range page {
		if d.stored.Started {
			d.reserved = false // the handler has its slot
			started = append(started, &Delivery{Message: d.Message, Attempt: 1, row: d.stored.ID, fence: 1, ClaimedAt: d.stored.At, onReceipt: true})
		}
		waits = waits || d.stored.New && !d.stored.Started
		if d.unreadable != "" && d.stored.New {
			r.Log.ErrorContext(ctx, "message cannot be read: it is a dead letter", "receiver", r.Receiver, "message_id", d.ID, "reason", d.unreadable)
		}
	}
	r.start(ctx, started)
	if waits {
		r.notifyDeferred()
	}
	return nil
}
