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
)

// Cause says where an event comes from. It is stored with the event.
type Cause struct {
	// CorrelationID is shared by everything that one request led to.
	CorrelationID string `json:"correlation_id"`
	// CausationID is the request or the message that the decision answered. The id of the event depends on it.
	CausationID string `json:"causation_id"`
	// Actor is the program or person that decided.
	Actor string `json:"actor"`
	// APIKey is the id of the API key of the request, never the key; "" if there was none.
	APIKey string `json:"api_key,omitempty"`
	// Client is the address from which the request came; "" if there was none.
	Client string `json:"client,omitempty"`
	// At is when the event occurred, for display. Where zero, it is the database's time.
	At time.Time `json:"-"`
}

const insertEvent = `
-- ledger.insertEvent
insert into ledger_events
       (event_id, stream_id, version, type, webhook, merchant_id, data, metadata, occurred_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, coalesce($9, clock_timestamp()))`

const insertEvents = `
-- ledger.insertEvent
insert into ledger_events
       (event_id, stream_id, version, type, webhook, merchant_id, data, metadata, occurred_at)
select event_id, stream_id, version, type, webhook, merchant_id, data, metadata, coalesce(occurred_at, clock_timestamp())
  from unnest($1::uuid[], $2::text[], $3::int[], $4::text[], $5::boolean[], $6::text[], $7::jsonb[], $8::jsonb[], $9::timestamptz[])
       as e (event_id, stream_id, version, type, webhook, merchant_id, data, metadata, occurred_at)`

const insertPosting = `
-- ledger.insertPosting
insert into ledger_postings
       (stream_id, version, leg, merchant_id, debit, credit, amount, currency)
values ($1, $2, $3, $4, $5, $6, $7, $8)`

const insertPostings = `
-- ledger.insertPosting
insert into ledger_postings
       (stream_id, version, leg, merchant_id, debit, credit, amount, currency)
select *
  from unnest($1::text[], $2::int[], $3::int[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::text[])`

// Woken is the name under which groupcommit.Options.Committed hears of new events (Statement.Wakes).
const Woken = "ledger"

// Writes returns the statements of this package that may share a commit. An event stands
// before its postings: the policy on postings reads it.
func Writes() []groupcommit.Statement {
	return []groupcommit.Statement{
		{SQL: insertEvent, ManyRows: insertEvents, Wakes: func([]any) string { return Woken }},
		{SQL: insertPosting, ManyRows: insertPostings},
		{SQL: holdOrder, Locks: "held_orders", Key: 2},
		{SQL: freeOrder, Locks: "held_orders", Key: 2},
	}
}

// Append queues events after the last event of s, with the postings that they cause and the
// hold on an order, and returns the stream as it is once the batch has committed. It does no
// I/O. The error is domain.ErrIllegal, wrapped, for an event that the charge does not allow. After an
// error the batch must not be committed: it may hold a part of the events.
//
// The commit is refused as a whole, with an error for which IsConflict is true, if the stream in the
// database has an event at one of these versions, or lacks the last event of s.
//
// In a transaction of your own, load s before the first write, which takes the transaction id. Else version
// n+1 may have a lower transaction id than n, and readers in the order of these ids see it first.
func Append(b *pgx.Batch, s Stream, cause Cause, events ...domain.Event) (Stream, error) {
	metadata, _ := json.Marshal(cause) // texts have no error
	var at *time.Time
	if !cause.At.IsZero() {
		at = &cause.At
	}
	next := s
	next.Events = slices.Clip(s.Events) // s keeps its own events
	for _, e := range events {
		charge, err := next.Charge.Append(e)
		if err != nil {
			return s, fmt.Errorf("append to %s: %w", s.ID, err)
		}
		data, err := json.Marshal(e)
		if err != nil {
			return s, fmt.Errorf("append to %s: %w", s.ID, err)
		}
		name, version := domain.TypeOf(e), next.Charge.Version+1
		id := eventID(next, cause.CausationID, name)
		postings := domain.Postings(next.Charge, e)
		next.Charge = charge
		next.Events = append(next.Events, StoredEvent{
			ID: id, Version: version, Type: name, Data: data, Event: e, OccurredAt: cause.At,
		})
		merchant, webhook := next.Charge.MerchantID, domain.EventTypeNamed(name).Webhook != ""
		b.Queue(insertEvent, [16]byte(id), s.ID, version, name, webhook, merchant, data, metadata, at)
		for leg, p := range postings {
			b.Queue(insertPosting, s.ID, version, leg+1, merchant, p.Debit, p.Credit, p.Amount, p.Currency)
		}
		queueOrderHold(b, next, e)
	}
	return next, nil
}

const holdOrder = `
-- ledger.holdOrder
insert into held_orders
       (merchant_id, order_id, stream_id)
values ($1, $2, $3)`

// freeOrder ends the hold on an order. Only the charge that holds the order frees it.
const freeOrder = `
-- ledger.freeOrder
delete from held_orders
 where merchant_id = $1
   and order_id = $2
   and stream_id = $3`

// queueOrderHold queues what an event changes of the order of a charge that wants to be the only
// one: the request holds the order, and the failure frees it. held_orders_one_charge refuses a
// second charge for a held order with everything else in its commit.
func queueOrderHold(b *pgx.Batch, s Stream, e domain.Event) {
	if c := s.Charge; c.OneChargePerOrder {
		switch e.(type) {
		case domain.ChargeRequested:
			b.Queue(holdOrder, c.MerchantID, c.OrderID, s.ID)
		case domain.ChargeFailed:
			b.Queue(freeOrder, c.MerchantID, c.OrderID, s.ID)
		}
	}
}

// eventID returns the same id for the same decision made twice, and another id for the
// next event of the same type: UUIDv5 (RFC 9562) of the stream, the type, the number of
// events of the type before it, and the cause. The id of a request has version 8 in place of 5: the
// api may append requests only, so who has stolen its login cannot take the id of a worker's event.
func eventID(s Stream, causation, name string) uuid.UUID {
	// The namespace is stored data and never changes.
	namespace := uuid.UUID{0x70, 0x61, 0x79, 0x6f, 0x6e, 0x63, 0x65, 0x00, 0x80, 0, 0, 0, 0, 0, 0, 1}
	ordinal := 0
	for _, e := range s.Events {
		if e.Type == name {
			ordinal++
		}
	}
	// Only the cause, which comes last, can hold a NUL.
	id := uuid.NewSHA1(namespace, []byte(s.ID+"\x00"+name+"\x00"+strconv.Itoa(ordinal)+"\x00"+causation))
	if domain.EventTypeNamed(name).Request {
		id[6] = 8<<4 | id[6]&0xf
	}
	return id
}

// IsConflict reports whether a commit was refused because the stream is not the one that was decided on: load, fold and
// decide again. Other guards name another charge's object: to decide again does not help.
//
//   - The stream has grown: do not repeat what its new events say is done.
//   - Another charge holds the order.
//   - After a failover that lost commits, the stream is shorter, or is ErrNotFound.
func IsConflict(err error) bool {
	switch groupcommit.Constraint(err) {
	case "ledger_events_version_once", "ledger_events_event_once", "ledger_events_previous_exists",
		"ledger_events_one_capture", "ledger_events_one_outcome",
		"ledger_events_one_refund_outcome", "ledger_events_one_refund_reversal", "ledger_events_one_dispute",
		"held_orders_one_charge":
		return true
	}
	return false
}

// Envelope names an event: the payload of an outbox message. It only wakes the receiver,
// which reads the event itself from the stream.
type Envelope struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	ChargeID string `json:"charge_id"`
	Version  int    `json:"version"`
}

// EncodeEnvelope returns the payload that announces an event of the stream.
func (s Stream) EncodeEnvelope(e StoredEvent) []byte {
	return Envelope{ID: e.ID.String(), Type: e.Type, ChargeID: s.ID, Version: e.Version}.Encode()
}

// Encode returns the envelope as a payload.
func (e Envelope) Encode() []byte {
	payload, _ := json.Marshal(e) // texts and a number have no error
	return payload
}

// DecodeEnvelope reads a payload that Encode made. ErrNotFound if it names no event of a charge.
func DecodeEnvelope(payload []byte) (Envelope, error) {
	var e Envelope
	if err := json.Unmarshal(payload, &e); err != nil {
		return e, fmt.Errorf("decode an envelope: %w", err)
	}
	if e.ChargeID == "" || e.Version < 1 {
		return e, fmt.Errorf("decode an envelope that names no event of a charge: %w", ErrNotFound)
	}
	return e, nil
}
