package intake

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres"
)

var (
	// ErrInFlight is returned while another request under the same key is being
	// committed and did not end within the pool's lock time-out.
	ErrInFlight = errors.New("a request under this key is in flight")
	// ErrUnavailable is returned, wrapped, when nobody can say for now whether
	// the request was accepted. The same request under the same key settles it.
	ErrUnavailable = errors.New("the store cannot answer now")
)

// Intake accepts requests into one database.
type Intake struct {
	DB        *postgres.DB
	Retention time.Duration // how long a key keeps its answer
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
	Key         idempotency.Key
	Fingerprint []byte
	ID          string // of the HTTP request, for correlation
}

// Accepted is the answer to a request, and whether it was given before.
type Accepted struct {
	idempotency.Answer
	ExpiresAt time.Time
	Replayed  bool
}

// tries bounds how often one request is decided. More than one is needed only
// when a rival commits between look and claim, or when a commit's outcome is
// unknown.
const tries = 4

// once answers from the key, or runs write, whose batch must begin with the
// claim of the key, in one commit.
//
// If we die here: before the commit nothing is there and the client's retry runs
// from the start; after it the client's retry is answered from the key.
// Test: e2e TestAPI/a_killed_api_leaves_all_of_a_charge_or_nothing.
func (in *Intake) once(ctx context.Context, r Request, write func(b *pgx.Batch, now, expires time.Time) (idempotency.Answer, error)) (Accepted, error) {
	var at time.Time // the first look's time, so that every try writes the same
	var last error
	for try := range tries {
		if err := pause(ctx, try); err != nil {
			return Accepted{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		record, found, now, err := idempotency.Look(ctx, in.DB, r.Key)
		if err != nil {
			last = err
			continue
		}
		if found {
			answer, err := record.Replay(r.Fingerprint)
			return Accepted{Answer: answer, ExpiresAt: record.ExpiresAt, Replayed: true}, err
		}
		if at.IsZero() {
			at = now
		}
		expires := at.Add(in.Retention).Truncate(time.Second)
		b := &pgx.Batch{}
		answer, err := write(b, at, expires)
		if err != nil {
			return Accepted{}, err
		}
		err = in.DB.Commit(ctx, b)
		switch {
		case err == nil:
			return Accepted{Answer: answer, ExpiresAt: expires}, nil
		case postgres.IsLockTimeout(err):
			return Accepted{}, ErrInFlight
		case idempotency.IsTaken(err), errors.Is(err, postgres.ErrUnknown), postgres.IsTransient(err):
			last = err // look again: the key knows who won, if anybody did
		default:
			return Accepted{}, err
		}
	}
	return Accepted{}, fmt.Errorf("%w: %w", ErrUnavailable, last)
}

// pause keeps rivals apart: nothing before the first try, then up to 20 ms more
// each time.
func pause(ctx context.Context, try int) error {
	if try == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(rand.N(time.Duration(try) * 20 * time.Millisecond)): //nolint:gosec // jitter
		return nil
	}
}
