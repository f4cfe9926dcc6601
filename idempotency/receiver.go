package idempotency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/internal/postgres"
)

var (
	// ErrInFlight is returned while another request under the same key is being
	// committed and did not end within the time that this one may wait.
	ErrInFlight = errors.New("a request under this key is in flight")
	// ErrUnavailable is returned, wrapped, when nobody can tell whether the request
	// was done: the store does not answer. The same request under the same key settles it.
	ErrUnavailable = errors.New("the store cannot answer now")
)

// DefaultRetention is how long an answer is kept where nobody says otherwise.
const DefaultRetention = 24 * time.Hour

// Receiver is the idempotent receiver of requests: the loop around Look, Claim
// and Commit that Once and an HTTP edge share. The zero value of each field but
// DB is usable.
type Receiver struct {
	DB postgres.Store

	// Looks are how keys are read; each for itself, from DB, where nil.
	Looks *Looks

	// Retention is how long an answer is kept; DefaultRetention where zero.
	// Afterwards its key is a tombstone, and the work is still not done again.
	Retention time.Duration

	// Wait is how long a request waits for another one under its key, as the
	// function Wait has it; the pool's lock time-out where zero.
	Wait time.Duration

	// Cache may answer replays; nil where there is none.
	Cache Cache

	// Lost tells of a commit that was refused whether the work lost a race of its
	// own, such as one for a version. It is then decided anew.
	Lost func(error) bool

	// Observer counts; nobody does where it is zero.
	Observer Observer
}

// Outcome is the answer to a request, and whether it was given before.
type Outcome struct {
	Answer
	ExpiresAt time.Time // by the database's clock, in whole seconds
	Replayed  bool
}

// Decide decides a request: it queues what becomes true with the answer on the
// batch, and does nothing else that lasts. It queues no transaction control: a
// commit among its statements would store the answer without the work behind it.
// The answer is stored by the same batch: what its statements return comes too late.
// It is called again after every lost
// race, each time with an empty batch and the same now, which is the database's
// time; of all these calls one is committed, or none. An error commits nothing
// and leaves the key free.
type Decide func(ctx context.Context, b *pgx.Batch, now time.Time) (Answer, error)

const (
	// tries bounds how often one request is decided. More than one is needed only
	// when a rival commits between look and claim, when the work lost its own
	// race, or when a commit's outcome is unknown.
	tries = 16

	// unsettled bounds how many of them may end without an answer of the store.
	unsettled = 4
)

// Receive answers from the key, or commits what decide decides in one batch that
// begins with the claim of the key. If the request has further keys, the first one
// that is taken answers, and all are claimed together. Errors: ErrReused and
// ErrExpired, ErrInFlight, ErrUnavailable; what decide returned; and, as it came
// from Commit, a refusal of decide's own writes, which is IsTaken if decide claims
// keys of its own and one of them is taken. After ErrInFlight and ErrUnavailable the same request under
// the same key tells what has happened. After any other error nothing has.
//
// If we die here: before the commit nothing is there and the same request runs
// from the start; after it the same request is answered from the key.
// Test: TestReceiveOfACutConnection.
func (r Receiver) Receive(ctx context.Context, key Key, request Request, decide Decide) (Outcome, error) {
	record, found, keep := Recall(ctx, r.Cache, key, request)
	if found {
		return Outcome{Answer: record.Answer, ExpiresAt: record.ExpiresAt, Replayed: true}, nil
	}
	if r.Cache != nil {
		request.Looked = Looked{}
	}
	return r.receive(ctx, key, request, decide, keep, time.Time{})
}

// receive is Receive of a key that was free at the time that is given, or of
// which nothing is known.
func (r Receiver) receive(ctx context.Context, key Key, request Request, decide Decide, keep func(Record), free time.Time) (Outcome, error) {
	at := free // one time for all tries, so that each writes the same
	doubt := false
	foreign := false // the key that was taken is none of ours, as far as the last look tells
	var last error
	for try, unknown := 0, 0; try < tries && unknown < unsettled; try++ {
		if err := pause(ctx, try); err != nil {
			return Outcome{}, doubted(err, true)
		}
		if try > 0 || free.IsZero() {
			record, taken, now, err := r.look(ctx, key, request)
			request.Looked = Looked{} // it was true once
			if errors.Is(err, ErrUnavailable) {
				return Outcome{}, err
			}
			if err != nil {
				last, unknown = err, unknown+1
				continue
			}
			switch {
			case taken == 0:
				return replay(record, request, keep)
			case taken > 0:
				return replay(record, request, func(Record) {}) // it is another key's
			case IsTaken(last) && foreign:
				return Outcome{}, doubted(last, doubt)
			}
			foreign = IsTaken(last)
			if at.IsZero() {
				at = now
			}
		}
		b := &pgx.Batch{}
		answer, err := decide(ctx, b, at)
		if err != nil {
			return Outcome{}, doubted(err, doubt)
		}
		expires := at.Add(r.retention()).Truncate(time.Second)
		err = r.DB.Commit(ctx, r.claimed(b, key, request, answer, expires))
		r.observe(err)
		switch {
		case err == nil:
			keep(Record{Answer: answer, Fingerprint: request.Fingerprint, Canonical: request.Canonical, ExpiresAt: expires})
			return Outcome{Answer: answer, ExpiresAt: expires}, nil
		case IsInFlight(err):
			return Outcome{}, ErrInFlight
		case IsTaken(err), r.Lost != nil && r.Lost(err):
			last = err // look again: the key knows who won
		case postgres.IsLockTimeout(err):
			last = err // another key's work is in the way: once more
		case errors.Is(err, postgres.ErrUnknown), postgres.IsTransient(err):
			// Look again: if it was committed, the key has the answer. If it is still
			// being committed, the same batch waits for it.
			last, unknown = err, unknown+1
			doubt = doubt || errors.Is(err, postgres.ErrUnknown)
		default:
			return Outcome{}, doubted(err, doubt)
		}
	}
	return Outcome{}, doubted(last, true)
}

// look asks the first key, and then the others: the record of the first one that
// is taken and its index, or -1 and the database's time. A record is one that a
// failover does not lose.
func (r Receiver) look(ctx context.Context, key Key, request Request) (record Record, taken int, now time.Time, err error) {
	known := request.Looked
	if known.now.IsZero() || known.Key != key || len(request.Also) > 0 {
		defer r.Observer.looking()()
	}
	for i, value := range append([]string{key.Value}, request.Also...) {
		key.Value = value
		seen, err := r.lookAt(ctx, key, known)
		if err == nil && seen.found && seen.synchronous {
			seen, err = replicated(ctx, r.DB, key)
		}
		if seen.found || err != nil {
			return seen.record, i, seen.now, err
		}
		now = seen.now
	}
	return Record{}, -1, now, nil
}

func (r Receiver) lookAt(ctx context.Context, key Key, known Looked) (Looked, error) {
	if known.Key == key && !known.now.IsZero() {
		return known, nil
	}
	if r.Looks != nil {
		return r.Looks.look(ctx, key)
	}
	all, err := lookAll(ctx, r.DB, []Key{key})
	if err != nil {
		return Looked{}, notLooked(err)
	}
	return all[0], nil
}

// doubted keeps an error from passing for the whole story while the outcome of an
// earlier try is in doubt.
func doubted(err error, doubt bool) error {
	if !doubt {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func replay(record Record, request Request, keep func(Record)) (Outcome, error) {
	answer, err := record.Replay(request)
	if err == nil {
		keep(record)
	}
	return Outcome{Answer: answer, ExpiresAt: record.ExpiresAt, Replayed: true}, err
}

// claimed is the whole commit, in its order: the claims refuse before anything
// else is written.
func (r Receiver) claimed(work *pgx.Batch, key Key, request Request, a Answer, expires time.Time) *pgx.Batch {
	b := &pgx.Batch{}
	if r.Wait > 0 {
		Wait(b, r.Wait)
	}
	Claim(b, key, request, a, expires)
	for _, value := range request.Also {
		Claim(b, Key{Scope: key.Scope, Operation: key.Operation, Value: value}, request, a, expires)
	}
	b.QueuedQueries = append(b.QueuedQueries, work.QueuedQueries...)
	return b
}

func (r Receiver) retention() time.Duration {
	if r.Retention <= 0 {
		return DefaultRetention
	}
	return r.Retention
}

// IsInFlight tells whether a commit was refused because another one under the
// same key did not end in time. A lock that the work itself waits for is another
// matter, and is told apart by the place that the server names.
func IsInFlight(err error) bool {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	return ok && postgres.IsLockTimeout(err) && strings.Contains(refusal.Where, "idempotency_keys_once")
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
