package intake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
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
	ErrInFlight = errors.New("a request under this key is in flight")
	// ErrUnavailable is returned, wrapped, when nobody can say for now whether
	// the request was accepted. The same request under the same key settles it.
	ErrUnavailable = errors.New("the store cannot answer now")
)

// Intake accepts requests into one database.
type Intake struct {
	DB        *postgres.DB
	Retention time.Duration // how long a key keeps its answer
	// Cache may answer replays; nil where there is none.
	Cache idempotency.Cache
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
	Key idempotency.Key
	idempotency.Request
	ID string // of the HTTP request, for correlation

	// Wait is how long the request may wait for another one under its key; the
	// pool's lock time-out where zero.
	Wait time.Duration

	// Refuse writes the answer to a refusal of the business: a charge that does
	// not exist, is in the wrong state or has too little left. Such a refusal is
	// an outcome. It is stored under the key like any other.
	Refuse func(error) (idempotency.Answer, error)
}

// Accepted is the answer to a request, and whether it was given before.
type Accepted struct {
	idempotency.Answer
	ExpiresAt time.Time
	Replayed  bool
}

// decision is the answer to a request and what happens with it: events on a
// stream, perhaps none.
type decision struct {
	answer idempotency.Answer
	stream ledger.Stream
	events []domain.Event
}

const (
	// tries bounds how often one request is decided. More than one is needed only
	// when a rival commits between look and claim, moves the stream on, or when a
	// commit's outcome is unknown.
	tries = 16

	// uncertain bounds how many of them may end without an answer of the store.
	uncertain = 4
)

// once answers from the key, or commits what decide decides in one batch that
// begins with the claim of the key. decide is called again after every lost
// race; now is the database's time and the same at every call.
//
// If we die here: before the commit nothing is there and the client's retry runs
// from the start; after it the client's retry is answered from the key.
// Test: e2e TestAPI/a_killed_api_leaves_all_of_a_charge_or_nothing.
func (in *Intake) once(ctx context.Context, r Request, decide func(ctx context.Context, now time.Time) (decision, error)) (Accepted, error) {
	record, hit, keep := idempotency.Recall(ctx, in.Cache, r.Key, r.Request)
	if hit {
		return Accepted{Answer: record.Answer, ExpiresAt: record.ExpiresAt, Replayed: true}, nil
	}
	var at time.Time
	var last error
	unanswered := 0
	for try := 0; try < tries && unanswered < uncertain; try++ {
		if err := pause(ctx, try); err != nil {
			return Accepted{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		record, found, now, err := idempotency.Look(ctx, in.DB, r.Key)
		if err != nil {
			last, unanswered = err, unanswered+1
			continue
		}
		if found {
			answer, err := record.Replay(r.Request)
			if err == nil {
				keep(record)
			}
			return Accepted{Answer: answer, ExpiresAt: record.ExpiresAt, Replayed: true}, err
		}
		if at.IsZero() {
			at = now.Truncate(time.Millisecond)
		}
		d, err := decide(ctx, at)
		if refused(err) {
			d = decision{}
			d.answer, err = r.Refuse(err)
		}
		if err != nil {
			return Accepted{}, err
		}
		expires := at.Add(in.Retention).Truncate(time.Second)
		b, err := batch(r, d, at, expires)
		if err != nil {
			return Accepted{}, err
		}
		err = in.DB.Commit(ctx, b)
		switch {
		case err == nil:
			keep(idempotency.Record{Answer: d.answer, Fingerprint: r.Fingerprint, ExpiresAt: expires})
			return Accepted{Answer: d.answer, ExpiresAt: expires}, nil
		case postgres.IsLockTimeout(err):
			return Accepted{}, ErrInFlight
		case idempotency.IsTaken(err), ledger.IsConflict(err):
			last = err // look again: the key or the stream knows who won
		case errors.Is(err, postgres.ErrUnknown), postgres.IsTransient(err):
			last, unanswered = err, unanswered+1 // look again: if it was committed, the key has the answer
		default:
			return Accepted{}, err
		}
	}
	return Accepted{}, fmt.Errorf("%w: %w", ErrUnavailable, last)
}

// refused tells a refusal of the business from everything else that can go
// wrong.
func refused(err error) bool {
	return errors.Is(err, ledger.ErrNotFound) || errors.Is(err, domain.ErrFinished) ||
		errors.Is(err, domain.ErrNotCaptured) || errors.Is(err, domain.ErrExceedsCaptured)
}

// batch is the whole commit, in its order: the claim refuses before anything
// else is written.
func batch(r Request, d decision, at, expires time.Time) (*pgx.Batch, error) {
	b := &pgx.Batch{}
	if r.Wait > 0 {
		idempotency.Wait(b, r.Wait)
	}
	idempotency.Claim(b, r.Key, r.Request, d.answer, expires)
	if len(d.events) == 0 {
		return b, nil
	}
	cause := ledger.Cause{CorrelationID: r.ID, CausationID: r.ID, Actor: "api", At: at}
	s, err := ledger.Append(b, d.stream, cause, d.events...)
	if err != nil {
		return nil, err
	}
	return b, announce(b, s, r)
}

// own loads the stream of a charge if it is the account's. Another merchant's
// charge does not exist.
func (in *Intake) own(ctx context.Context, account Account, chargeID string) (ledger.Stream, error) {
	s, err := ledger.Load(ctx, in.DB, chargeID)
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
	return outbox.Append(b, outbox.Message{
		Topic:       ledger.Topic,
		ID:          s.Head().ID.String(),
		Type:        s.Head().Type,
		OrderingKey: s.ID,
		Payload:     payload,
		Metadata: map[string]string{
			outbox.MetadataCorrelationID: r.ID,
			outbox.MetadataCausationID:   s.Head().ID.String(),
		},
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

// pause keeps rivals apart: nothing before the first try, then up to 20 ms more
// each time, at most 100.
func pause(ctx context.Context, try int) error {
	if try == 0 {
		return nil
	}
	longest := time.Duration(min(try, 5)) * 20 * time.Millisecond
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(rand.N(longest)): //nolint:gosec // jitter
		return nil
	}
}
