package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
)

// Cause says where an event comes from. It is stored beside the event and is
// part of the event's identity.
type Cause struct {
	// CorrelationID is shared by everything that one request led to.
	CorrelationID string `json:"correlation_id"`
	// CausationID is the request or the message that the decision answered.
	CausationID string `json:"causation_id"`
	// Actor is the program or person that decided.
	Actor string `json:"actor"`
	// At is when it occurred, for display; the database's time where zero.
	At time.Time `json:"-"`
}

const insertEvent = `
insert into ledger_events
       (event_id, stream_id, version, type, schema_version, merchant_id, data, metadata, occurred_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, coalesce($9, clock_timestamp()))`

const insertPosting = `
insert into ledger_postings
       (stream_id, version, leg, merchant_id, debit, credit, amount, currency)
values ($1, $2, $3, $4, $5, $6, $7, $8)`

// Append queues events and the postings that they cause after the last event
// of s, and returns the stream as it is once the batch has committed. It does
// no I/O. The batch is refused as a whole, with an error for which IsConflict
// is true, if the stream meanwhile has an event at one of these versions, or no longer
// has the last event of s.
//
// Load s before the first write of the commit: then the order of transaction
// ids, and so the outbox's, follows the stream's versions.
func Append(b *pgx.Batch, s Stream, cause Cause, events ...domain.Event) (Stream, error) {
	metadata, err := json.Marshal(cause)
	if err != nil {
		return s, fmt.Errorf("encode the cause of an event: %w", err)
	}
	var at *time.Time
	if !cause.At.IsZero() {
		at = &cause.At
	}
	next := Stream{ID: s.ID, Charge: s.Charge, Events: make([]Recorded, len(s.Events), len(s.Events)+len(events))}
	copy(next.Events, s.Events)
	for _, e := range events {
		data, err := domain.Encode(e)
		if err != nil {
			return s, fmt.Errorf("append to %s: %w", s.ID, err)
		}
		recorded := Recorded{
			ID:         eventID(next, cause.CausationID, domain.TypeOf(e)),
			Version:    next.Charge.Version + 1,
			Type:       domain.TypeOf(e),
			Data:       data,
			Event:      e,
			OccurredAt: cause.At,
		}
		postings := domain.Postings(next.Charge, e)
		next.Charge = domain.Fold(next.Charge, e)
		next.Events = append(next.Events, recorded)
		merchant := next.Charge.MerchantID
		b.Queue(insertEvent, [16]byte(recorded.ID), s.ID, recorded.Version, recorded.Type,
			domain.SchemaVersion, merchant, data, metadata, at)
		for leg, p := range postings {
			b.Queue(insertPosting, s.ID, recorded.Version, leg+1, merchant,
				p.Debit, p.Credit, p.Amount, p.Currency)
		}
	}
	return next, nil
}

// eventID is the same for the same decision made twice, and another for a
// second event of its type: UUIDv5 (RFC 9562) over stream, cause, type and how
// many events of the type the stream already has.
func eventID(s Stream, causation, name string) uuid.UUID {
	ordinal := 0
	for _, e := range s.Events {
		if e.Type == name {
			ordinal++
		}
	}
	// None of the parts but the cause can hold a NUL, and the ends are fixed.
	seed := s.ID + "\x00" + name + "\x00" + strconv.Itoa(ordinal) + "\x00" + causation
	return uuid.NewSHA1(eventNamespace(), []byte(seed))
}

// eventNamespace is the namespace of payonce's event ids; it is stored data and
// never changes.
func eventNamespace() uuid.UUID {
	return uuid.UUID{0x70, 0x61, 0x79, 0x6f, 0x6e, 0x63, 0x65, 0x00, 0x80, 0, 0, 0, 0, 0, 0, 1}
}

// IsConflict reports whether a commit was refused because the stream is not the one that
// was decided on: load, fold and decide again. Mostly it has moved on; an effect whose
// event is there by then is not repeated. After a failover that lost commits it is shorter,
// or does not exist (ErrNotFound).
func IsConflict(err error) bool {
	switch postgres.Constraint(err) {
	case "ledger_events_version_once", "ledger_events_event_once", "ledger_events_previous_exists",
		"ledger_events_one_capture", "ledger_events_one_outcome",
		"ledger_events_one_refund_outcome", "ledger_events_one_refund_reversal":
		return true
	}
	return false
}

// Appended tells whether a batch holds an event: once it is committed, there is something
// to project.
func Appended(b *pgx.Batch) bool {
	return slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool { return q.SQL == insertEvent })
}

// Writes are the statements of this package that may share a commit. An event stands before
// its postings, which refer to it.
func Writes() []groupcommit.Statement {
	return []groupcommit.Statement{
		groupcommit.Insert(insertEvent, "%s", "%s", "%s", "%s", "%s", "%s", "%s", "%s", "coalesce(%s, clock_timestamp())"),
		groupcommit.Insert(insertPosting, "%s", "%s", "%s", "%s", "%s", "%s", "%s", "%s"),
	}
}
