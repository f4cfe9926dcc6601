package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
	"github.com/payonce/payonce/ledger"
	"github.com/payonce/payonce/outbox"
)

var (
	// ErrInFlight is returned while another request under the same key is being
	// committed and did not end within the time that this one may wait.
	ErrInFlight = idempotency.ErrInFlight
	// ErrUnavailable is returned, wrapped, when nobody can tell whether the request
	// was accepted: the store does not answer. The same request under the same key settles it.
	ErrUnavailable = idempotency.ErrUnavailable
)

// ErrCrowded is an ErrInFlight: the request would have waited for the other one,
// and so many wait already that it may not.
var ErrCrowded = fmt.Errorf("%w, and too many requests wait", ErrInFlight)

// Tenants is a database that is read and written as one merchant's at a time
// alone. A *postgres.DB is one.
type Tenants interface {
	Tenant(merchant string) *postgres.Tenant
}

// Intake accepts requests into one database.
type Intake struct {
	DB        Tenants
	Retention time.Duration // how long a key keeps its answer
	// Looks are how keys are read; each for itself where nil.
	Looks *idempotency.Looks
	// Cache may answer replays; nil where there is none.
	Cache idempotency.Cache
	// Wait is how long a request waits for another one under its key, beyond the
	// pool's lock time-out; not at all where zero. A request may ask for more.
	Wait time.Duration
	// Waiters is how many may wait at a time. Each holds a connection, so it should
	// be a part of the pool; none may where zero.
	Waiters int
	// Observer counts what becomes of keys and commits.
	Observer idempotency.Observer

	waiting atomic.Int64
}

// Account is who asks, as far as accepting depends on it.
type Account struct {
	MerchantID     string
	FeeBasisPoints int64
	FeeFixed       map[string]int64 // currency → minor units
	Notify         bool             // the merchant has a webhook endpoint
}

// Request is the part of a request that identifies it: the same key with the
// same rest is the same request.
type Request struct {
	Key idempotency.Key // its scope is the account's merchant, whatever is said here
	idempotency.Request
	ID string // of the HTTP request, for correlation
	// Metadata goes along with the message that the request causes. Nothing is
	// decided by it.
	Metadata map[string]string

	// Wait is how long the request wants to wait for another one under its key;
	// the Intake's Wait where zero.
	Wait time.Duration

	// Refuse writes the answer to a refusal of the business: a charge that does
	// not exist, is in the wrong state or has too little left. Such a refusal is
	// an outcome. It is stored under the key like any other.
	Refuse func(error) (idempotency.Answer, error)
}

// Accepted is the answer to a request, and whether it was given before.
type Accepted = idempotency.Outcome

// decide reads what a decision needs of the merchant's, and decides.
type decide func(ctx context.Context, tenant *postgres.Tenant, now time.Time) (decision, error)

// decision is the answer to a request and what happens with it: events on a
// stream, perhaps none.
type decision struct {
	answer idempotency.Answer
	stream ledger.Stream
	events []domain.Event
}

// once answers from the key, or commits what decide decides in one batch that
// begins with the claim of the key. decide is called again after every lost
// race; now is the database's time and the same at every call. All of it is read
// and written as the account's merchant, whose key it is.
//
// If we die here: before the commit nothing is there and the client's retry runs
// from the start; after it the client's retry is answered from the key.
// Test: e2e TestAPI/a_killed_api_leaves_all_of_a_charge_or_nothing.
func (in *Intake) once(ctx context.Context, account Account, r Request, decide decide) (Accepted, error) {
	tenant := in.DB.Tenant(account.MerchantID)
	r.Key.Scope = account.MerchantID
	accepted, err := in.receive(ctx, tenant, r, 0, decide)
	wait := r.Wait
	if wait == 0 {
		wait = in.Wait
	}
	if !errors.Is(err, ErrInFlight) || wait == 0 {
		return accepted, err
	}
	// The other one has taken longer than the pool's lock time-out. Who waits on
	// holds a connection that others could use.
	defer in.waiting.Add(-1)
	if in.waiting.Add(1) > int64(in.Waiters) {
		return accepted, ErrCrowded
	}
	r.Looked = idempotency.Looked{} // the other one may be done by now
	return in.receive(ctx, tenant, r, wait, decide)
}

func (in *Intake) receive(ctx context.Context, tenant *postgres.Tenant, r Request, wait time.Duration, decide decide) (Accepted, error) {
	receiver := idempotency.Receiver{DB: tenant, Looks: in.Looks, Retention: in.Retention, Wait: wait, Cache: in.Cache, Lost: ledger.IsConflict, Observer: in.Observer}
	return receiver.Receive(ctx, r.Key, r.Request, func(ctx context.Context, b *pgx.Batch, now time.Time) (idempotency.Answer, error) {
		at := now.Truncate(time.Millisecond)
		d, err := decide(ctx, tenant, at)
		if refused(err) {
			return r.Refuse(err)
		}
		if err != nil {
			return idempotency.Answer{}, err
		}
		return d.answer, write(b, r, d, at)
	})
}

// refused tells a refusal of the business from everything else that can go
// wrong.
func refused(err error) bool {
	return errors.Is(err, ledger.ErrNotFound) || errors.Is(err, domain.ErrFinished) ||
		errors.Is(err, domain.ErrNotCaptured) || errors.Is(err, domain.ErrExceedsCaptured) ||
		errors.Is(err, domain.ErrTooManyRefunds)
}

// write queues the events of a decision and the message about the last of them.
func write(b *pgx.Batch, r Request, d decision, at time.Time) error {
	if len(d.events) == 0 {
		return nil
	}
	cause := ledger.Cause{CorrelationID: r.ID, CausationID: r.ID, Actor: "api", At: at}
	s, err := ledger.Append(b, d.stream, cause, d.events...)
	if err != nil {
		return err
	}
	return announce(b, s, r)
}

// own loads the stream of a charge if it is the account's. Another merchant's
// charge does not exist: the database shows none of it to the tenant, and were it
// to show one, it is refused here.
func own(ctx context.Context, tenant *postgres.Tenant, account Account, chargeID string) (ledger.Stream, error) {
	s, err := ledger.Load(ctx, tenant, chargeID)
	if err == nil && s.Charge.MerchantID != account.MerchantID {
		return ledger.Stream{}, fmt.Errorf("load stream %s: %w", chargeID, ledger.ErrNotFound)
	}
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		return ledger.Stream{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return s, err
}

// announce queues the message that wakes the worker.
func announce(b *pgx.Batch, s ledger.Stream, r Request) error {
	payload, err := s.Seal(s.Head())
	if err != nil {
		return err
	}
	metadata := map[string]string{}
	maps.Copy(metadata, r.Metadata)
	metadata[outbox.MetadataCorrelationID] = r.ID
	metadata[outbox.MetadataCausationID] = s.Head().ID.String()
	return outbox.Append(b, outbox.Message{
		Topic:       ledger.Topic,
		ID:          s.Head().ID.String(),
		Type:        s.Head().Type,
		OrderingKey: s.ID,
		Partition:   s.Charge.MerchantID,
		Payload:     payload,
		Metadata:    metadata,
	})
}

func accepted(location string, view any) (idempotency.Answer, error) {
	body, err := json.Marshal(view)
	if err != nil {
		return idempotency.Answer{}, fmt.Errorf("encode an answer: %w", err)
	}
	return idempotency.Answer{
		StatusCode:  http.StatusAccepted,
		ContentType: "application/json",
		Location:    location,
		Body:        append(body, '\n'),
	}, nil
}
