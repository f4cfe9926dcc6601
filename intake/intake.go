// Package intake accepts requests: it turns a valid request under an idempotency key into
// one commit: the key with its finished answer, the events, their postings, the hold on the
// order if the charge asks for one, and the message that wakes a worker. It owns no table.
//
// # Guarantees
//
//   - The commit is all or nothing, so a program that dies leaves everything or nothing.
//   - A key accepts once. Until it expires, the same request gets the first answer, byte for byte.
//   - A success is answered only for what is durable. If that is unknown, the error is
//     idempotency.ErrUnknown, and the same request finds out.
//
// # Why idempotency.Receive
//
// A charge is decided in memory, from what is read before, and its ids are made here: its answer
// is known before anything is written. Key, answer and writes are one batch, one round trip, and a
// transaction that other requests share. idempotency.Once would hold a connection for seven round trips.
package intake

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/merchants"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

// Intake accepts requests into one database.
type Intake struct {
	DB *postgres.DB
	// Options are each request's, but for IsConflict and Request.Wait.
	Options idempotency.Options
}

// Request identifies a request by Key and Fingerprint: the same key with another fingerprint
// is idempotency.ErrReused. The other fields identify nothing.
type Request struct {
	Key idempotency.Key // its scope becomes the merchant
	idempotency.Request
	Merchant merchants.Merchant // the caller
	ID       string             // of the HTTP request, for correlation
	APIKey   string             // the id of the API key, never the key
	Client   string             // the client's address
	// Metadata becomes metadata of the message that the request causes. It decides nothing.
	Metadata map[string]string

	// Wait is how long the request waits for another one under its key;
	// Options.Wait if zero.
	Wait time.Duration

	// Refuse returns the answer to an error of a charge that does not exist, is in the
	// wrong state, has too little left, or has the order. It is stored under the key, unless
	// that has an answer by then (checkOrder). Other errors have none.
	Refuse func(error) (answer idempotency.Answer, ok bool)
}

// decision is what a request does to a stream: the events that it appends, none if nothing changes.
type decision struct {
	stream ledger.Stream
	events []domain.Event
	refund string // the id of the refund that the answer shows; empty for the charge
}

// accept receives a request about which decide decides, at a time of the database's clock. One commit claims the
// key with the answer and, if there are events, writes them, their postings and the message that names the last one.
//
// If we die here: before the commit nothing is stored and the client's retry runs from the start; after it the
// client's retry is answered from the key. Test: TestWalk in e2e.
func (in *Intake) accept(ctx context.Context, r Request, decide func(ctx context.Context, now time.Time) (decision, error)) (idempotency.Result, error) {
	return in.receive(ctx, r, func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
		d, err := decide(ctx, now)
		if err != nil && r.Refuse != nil {
			if refusal, ok := r.Refuse(err); ok {
				return refusal, nil
			}
		}
		if err == nil && len(d.events) > 0 {
			d.stream, err = r.write(b, d.stream, d.events, now.Truncate(time.Millisecond))
		}
		if err != nil {
			return idempotency.Answer{}, err
		}
		return d.answer(), nil
	})
}

// receive works as the merchant, whose rows alone row-level security allows (postgres.DB.Tenant).
func (in *Intake) receive(ctx context.Context, r Request, work idempotency.Work) (idempotency.Result, error) {
	o, db := in.Options, in.DB.Tenant(r.Merchant.ID)
	o.Wait, o.IsConflict = cmp.Or(r.Wait, o.Wait), ledger.IsConflict
	r.Key.Scope = r.Merchant.ID
	return idempotency.Receive(ctx, db, r.Key, r.Request, o, work)
}

// write queues the events, their postings, the hold on the order and the message. Receive puts the key before them.
func (r Request) write(b *pgx.Batch, s ledger.Stream, events []domain.Event, now time.Time) (ledger.Stream, error) {
	s, err := ledger.Append(b, s, ledger.Cause{CorrelationID: r.ID, CausationID: r.ID, Actor: "api", APIKey: r.APIKey, Client: r.Client, At: now}, events...)
	if err != nil {
		return s, err
	}
	last := s.Head()
	metadata := maps.Collect(maps.All(r.Metadata))
	metadata[outbox.MetadataCorrelationID] = r.ID
	metadata[outbox.MetadataCausationID] = last.ID.String()
	return s, outbox.Append(b, outbox.Message{
		Topic: domain.Topic, ID: last.ID.String(), Type: last.Type, OrderingKey: domain.OrderingKey(s.ID, last.Event), Partition: s.Charge.MerchantID,
		Payload: s.EncodeEnvelope(last), Metadata: metadata,
	})
}

// load returns the stream of a charge of a merchant. Another merchant's charge is
// ledger.ErrNotFound: row-level security hides it, and so does this check.
func (in *Intake) load(ctx context.Context, merchant, chargeID string) (ledger.Stream, error) {
	s, err := ledger.Load(ctx, in.DB.Tenant(merchant), chargeID)
	if err == nil && s.Charge.MerchantID != merchant {
		return ledger.Stream{}, fmt.Errorf("load stream %s: %w", chargeID, ledger.ErrNotFound)
	}
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return ledger.Stream{}, fmt.Errorf("%w: %w", idempotency.ErrUnknown, err)
	}
	return s, err
}

// answer is 202 with the state of the charge, or of its refund.
func (d decision) answer() idempotency.Answer {
	location, view := "/v1/charges/"+d.stream.ID, any(d.stream.View())
	if refund, found := d.stream.Charge.Refund(d.refund); found {
		location, view = location+"/refunds/"+refund.ID, d.stream.Charge.RefundView(refund)
	}
	body, _ := json.Marshal(view) // texts, numbers and times have no error
	return idempotency.Answer{
		StatusCode: http.StatusAccepted, Body: append(body, '\n'),
		Header: http.Header{"Content-Type": {"application/json"}, "Location": {location}},
	}
}

// newID makes an id of a charge that begins with a time of the database's clock: a UUIDv7 (RFC 9562)
// with the microseconds. The list of charges sorts by id, and new rows share index pages.
func newID(now time.Time) string {
	id := uuid.New()
	micros := now.Nanosecond() / int(time.Microsecond) % 1000
	binary.BigEndian.PutUint64(id[:8], uint64(now.UnixMilli())<<16|7<<12|uint64(micros<<2)) //nolint:gosec // after 1970
	return "ch_" + hex.EncodeToString(id[:])
}

// BatchedRead returns a Read of idempotency.Options that reads keys in batches: those that are
// asked for at the same time share a round trip (postgres.Reads). At most `most` reads are in flight,
// so a lock on the table holds no more connections. A scope is a merchant, and each key is
// read as the merchant of its scope.
//
// A read in flight goes on when its callers have left: to cancel it would close the connection, while its session
// still waits in the server.
func BatchedRead(db *postgres.DB, most int) func(ctx context.Context, _ groupcommit.Querier, key idempotency.Key) (idempotency.KeyState, error) {
	reads := postgres.NewReads(most, func(ctx context.Context, keys []idempotency.Key) ([]idempotency.KeyState, error) {
		states, scopes := make([]idempotency.KeyState, len(keys)), map[string][]*idempotency.KeyState{}
		for i, key := range keys {
			states[i].Key = key
			scopes[key.Scope] = append(scopes[key.Scope], &states[i])
		}
		b := &pgx.Batch{}
		for scope, states := range scopes {
			postgres.QueueTenant(b, scope)
			idempotency.QueueKeys(b, states)
		}
		if err := db.Read(context.WithoutCancel(ctx), b); err != nil {
			return nil, fmt.Errorf("read idempotency keys: %w", err)
		}
		return states, nil
	})
	return func(ctx context.Context, _ groupcommit.Querier, key idempotency.Key) (idempotency.KeyState, error) {
		return reads.Lookup(ctx, key)
	}
}
