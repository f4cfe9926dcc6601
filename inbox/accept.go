package inbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// Errors of Accept, wrapped, for a message that would break the batch which it
// rides in.
var (
	errNotStorable = errors.New("the id is missing, or a text holds NUL or is not UTF-8")
	errTooLong     = fmt.Errorf("the id or the ordering key has more than %d bytes", MaxLength)
)

// MaxLength is the length of the longest id and of the longest ordering key, in
// bytes. Both are found by indexes, which cannot hold texts of any length.
const MaxLength = 255

// Accept queues the reception of a message that came by another way than the
// outbox into a batch. The rules are those of Receive: a first delivery is kept
// and wakes its key, a repeated one is counted, and another payload under a known
// id is kept aside. It does no I/O; a batch that rolls back has received nothing,
// and the sender has to send again.
//
// Text that PostgreSQL cannot hold is refused here, and so is an id or an
// ordering key beyond MaxLength. No statement after it in the
// batch is planned to read a whole table where an index will do.
func Accept(b *pgx.Batch, receiver string, m Message) error {
	return AcceptInto(b, receiver, m, nil)
}

// AcceptInto is Accept that also fills r with what became of the message, which
// holds once the batch is committed.
func AcceptInto(b *pgx.Batch, receiver string, m Message, r *Reception) error {
	texts := []string{receiver, m.ID, m.OrderingKey, m.Type}
	for name, value := range m.Metadata {
		texts = append(texts, name, value)
	}
	for _, text := range texts {
		if m.ID == "" || !isText(text) {
			return fmt.Errorf("accept message %q for %q: %w", m.ID, receiver, errNotStorable)
		}
	}
	if len(m.ID) > MaxLength || len(m.OrderingKey) > MaxLength {
		return fmt.Errorf("accept message %.*q for %q: %w", MaxLength, m.ID, receiver, errTooLong)
	}
	d, err := deliver(m)
	if err != nil {
		return err
	}
	queueStore(b, receiver, []delivery{d}, slotsFor{}, func(layer []delivery, kept []storedRow) {
		if r != nil {
			*r = Reception{}
			r.count(layer, kept)
		}
	})
	return nil
}

// isText tells whether PostgreSQL can hold it.
func isText(s string) bool { return !strings.ContainsRune(s, 0) && utf8.ValidString(s) }

// asText is what is left of it that PostgreSQL can hold.
func asText(s string) string { return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD") }

// MadeDue tells whether a batch makes a message due that this process may not have a slot
// for: one that was accepted, or one that a processor that stops gave back.
func MadeDue(b *pgx.Batch) bool {
	return slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool {
		return q.SQL == release || q.SQL == store && q.Arguments[noHolder] == ""
	})
}

// noHolder is the place of the holder among the arguments of store, which Accept leaves
// empty.
const noHolder = 7
