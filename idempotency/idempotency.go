// Package idempotency gives each request one response: a request that arrives
// twice under one key is carried out once and receives the first response twice.
// Its counterpart for messages is package inbox.
//
// # Usage
//
// Once wraps a function with a typed result:
//
//	payments := idempotency.Once[Order, Payment]{
//		Receiver:  idempotency.Receiver{DB: db},
//		Scope:     "acme",
//		Operation: "pay.v1",
//		Work: func(ctx context.Context, b *pgx.Batch, o Order) (Payment, error) {
//			b.Queue(insertPayment, o.ID, o.Amount)
//			return Payment{ID: o.ID}, nil
//		},
//	}
//	result, err := payments.Do(ctx, order)
//
// Receiver is the same for responses of HTTP. Claim and ReadKey are its two
// statements. Where a sender gives no key, an Extractor derives one: NaturalKey,
// Window and ContentKey.
//
// # Guarantees
//
//   - A key has one answer. It is inserted by the commit that does the work, so a
//     crash leaves both or neither.
//   - Of several commits under one key the unique constraint refuses all but one.
//   - A replay is the stored answer, byte for byte. Another request under the key
//     is refused (ErrReused).
//   - An answer expires by the database's clock. Its key stays as a tombstone: the
//     work is never done again (ErrExpired).
//
// # Limits
//
//   - An answer is not the current state.
//   - Nothing is guaranteed for what the work does outside the commit.
//
// Table: idempotency_keys.
package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

var (
	// ErrInFlight is returned while another request under the same key is being
	// committed and did not end within the time that this one may wait.
	ErrInFlight = errors.New("a request under this key is in flight")
	// ErrCrowded is an ErrInFlight: as many requests wait as may.
	ErrCrowded = fmt.Errorf("%w, and too many requests wait", ErrInFlight)
	// ErrUnavailable is returned, wrapped, when it is unknown whether the request was
	// carried out: the store does not answer. The same request under the same key
	// finds out.
	ErrUnavailable = errors.New("the store cannot answer now")
)

// DefaultRetention is how long an answer is kept unless a Receiver sets another time.
const DefaultRetention = 24 * time.Hour

// Store is the database of one scope: it reads, and commits a batch as one
// transaction.
type Store interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Commit(ctx context.Context, b *pgx.Batch) error
}

// Receiver is the idempotent receiver of requests. The zero value of each field but
// DB is usable.
type Receiver struct {
	DB Store

	// Keys reads keys in batches; each is read individually from DB if nil.
	Keys *KeyReader

	// Retention is how long an answer is kept; DefaultRetention if zero.
	Retention time.Duration

	// Wait is how long a request waits for another one under its key, at most
	// MaxWait; the pool's lock time-out if zero.
	Wait time.Duration

	// Waiters bounds the requests that wait longer than the pool's lock time-out: its
	// capacity is their number, and one more is refused as ErrCrowded. Each holds a
	// connection, so it should be a part of the pool. There is no bound if nil.
	Waiters chan struct{}

	// Cache may answer replays; nil if there is none.
	Cache Cache

	// Lost reports whether a commit was refused because the work lost a race of its
	// own, such as one for a version. The work then runs again.
	Lost func(error) bool

	Observer Observer
}

// Outcome is the answer to a request, and whether it is a replay.
type Outcome struct {
	Answer
	ExpiresAt time.Time // by the database's clock, in whole seconds
	Replayed  bool
}

// Work carries out a request: it queues its writes on the batch and returns the
// answer, which the same batch stores. It must not write elsewhere, queue
// transaction control, or use what its statements return: that comes after the answer
// is stored. It is called again after each lost race, with an empty batch and
// the same now, which is the database's time. One of these calls is committed, or
// none. An error commits nothing and leaves the key free.
type Work func(ctx context.Context, b *pgx.Batch, now time.Time) (Answer, error)

const (
	// maxTries bounds the commits of one request. More than one is needed only when a
	// rival commits between the read and the claim, when the work lost its own
	// race, or when the outcome of a commit is unknown.
	maxTries = 16

	// maxFailures bounds the tries that end without an answer of the store.
	maxFailures = 4
)

// Receive replays the answer of the key, or commits the work in one batch that begins
// with the claim of the key. If the request has further keys, the first one that is
// taken answers, and all are claimed together.
//
// Errors: ErrReused, ErrExpired, ErrInFlight, ErrUnavailable, what work returned, and
// what the store refused of its writes; IsTaken is true of that if work claims keys of
// its own. After ErrInFlight and ErrUnavailable the same request finds out what
// happened. After any other error nothing has.
//
// If we die here: before the commit nothing is stored and the same request runs from
// the start; after it the same request is answered from the key.
// Test: TestReceive_overACutConnection.
func (r Receiver) Receive(ctx context.Context, key Key, request Request, work Work) (Outcome, error) {
	var cached Cached
	if r.Cache != nil && !request.Known.isOf(key) {
		cached = findCached(ctx, r.Cache, key, request)
		if cached.Found {
			return Outcome{Answer: cached.Record.Answer, ExpiresAt: cached.Record.ExpiresAt, Replayed: true}, nil
		}
	}
	wait := r.Wait
	if r.Waiters == nil {
		return r.receive(ctx, key, request, work, cached)
	}
	r.Wait = 0
	outcome, err := r.receive(ctx, key, request, work, cached)
	if !errors.Is(err, ErrInFlight) || wait == 0 {
		return outcome, err
	}
	// The rival has taken longer than the pool's lock time-out.
	select {
	case r.Waiters <- struct{}{}:
		defer func() { <-r.Waiters }()
	default:
		return Outcome{}, ErrCrowded
	}
	r.Wait = wait
	request.Known = KeyState{} // the rival may have committed by now
	return r.receive(ctx, key, request, work, cached)
}

// receive reads the key and commits until one of both answers.
func (r Receiver) receive(ctx context.Context, key Key, request Request, work Work, cached Cached) (Outcome, error) {
	var (
		now     time.Time // the same for all tries, so that each writes the same
		last    error     // of the last try
		foreign bool      // the last refusal named a key, and it was none of the request's
		unknown bool      // a commit may still become durable
	)
	for try, failures := 0, 0; try < maxTries && failures < maxFailures; try++ {
		if err := pause(ctx, try); err != nil {
			return Outcome{}, unavailable(err)
		}
		state, err := r.read(ctx, key, request)
		request.Known = KeyState{} // it is true for the first try only
		switch {
		case errors.Is(err, ErrUnavailable):
			return Outcome{}, err
		case err != nil:
			last, failures = err, failures+1
			continue
		case state.Found:
			if state.Key != key {
				cached.Keep = nil
			}
			return replay(state.Record, request, cached)
		case IsTaken(last) && foreign: // a key that the work claims
			return Outcome{}, errorAfter(unknown, last)
		}
		foreign = IsTaken(last)
		now = cmp.Or(now, state.Now)
		b := &pgx.Batch{}
		answer, err := work(ctx, b, now)
		if err != nil {
			return Outcome{}, errorAfter(unknown, err)
		}
		record := r.record(request, answer, now)
		err = r.DB.Commit(ctx, r.claimed(b, key, request, record))
		switch r.observe(err) {
		case CommitMade:
			cached.keep(record)
			return Outcome{Answer: answer, ExpiresAt: record.ExpiresAt}, nil
		case CommitInFlight:
			return Outcome{}, ErrInFlight
		case CommitTaken, CommitLost:
			// The key knows which rival won.
		case CommitLocked, CommitFailed:
			// If the commit became durable, the key has the answer. If it is still in
			// flight, the same batch waits for it.
			switch outcome := postgres.OutcomeOf(err); {
			case outcome == postgres.Unknown:
				unknown = true
				failures++
			case !outcome.MayPass():
				return Outcome{}, errorAfter(unknown, err)
			case outcome != postgres.Locked:
				failures++
			}
		}
		last = err
	}
	return Outcome{}, unavailable(last)
}

// read returns the state of the first of the request's keys that is taken, or of the
// last one if all are free. A record that it returns survives a failover.
func (r Receiver) read(ctx context.Context, key Key, request Request) (state KeyState, err error) {
	if len(request.Also) > 0 || !request.Known.isOf(key) {
		defer r.Observer.reading()()
	}
	for _, value := range append([]string{key.Value}, request.Also...) {
		key.Value = value
		state, err = r.readOne(ctx, key, request.Known)
		if err == nil && state.Found && state.replicates {
			state, err = confirmKey(ctx, r.DB, key)
		}
		if err != nil || state.Found {
			return state, err
		}
	}
	return state, nil
}

func (r Receiver) readOne(ctx context.Context, key Key, known KeyState) (KeyState, error) {
	if known.isOf(key) {
		return known, nil
	}
	if r.Keys != nil {
		return r.Keys.Read(ctx, key)
	}
	return ReadKey(ctx, r.DB, key)
}

// replay answers from a record, and lets the cache keep it.
func replay(record Record, request Request, cached Cached) (Outcome, error) {
	answer, err := record.Replay(request)
	if err == nil {
		cached.keep(record)
	}
	return Outcome{Answer: answer, ExpiresAt: record.ExpiresAt, Replayed: true}, err
}

// claimed returns the batch to commit. The claims come first, so that a taken key
// refuses the batch before it writes anything else.
func (r Receiver) claimed(work *pgx.Batch, key Key, request Request, record Record) *pgx.Batch {
	b := &pgx.Batch{}
	if r.Wait > 0 {
		Wait(b, r.Wait)
	}
	for _, value := range append([]string{key.Value}, request.Also...) {
		key.Value = value
		Claim(b, key, request, record.Answer, record.ExpiresAt)
	}
	b.QueuedQueries = append(b.QueuedQueries, work.QueuedQueries...)
	return b
}

// record is what is stored for an answer at a time.
func (r Receiver) record(request Request, answer Answer, now time.Time) Record {
	retention := r.Retention
	if retention <= 0 {
		retention = DefaultRetention
	}
	return Record{
		Answer: answer, Fingerprint: request.Fingerprint, Canonical: request.Canonical,
		ExpiresAt: now.Add(retention).Truncate(time.Second),
	}
}

// errorAfter marks an error as ErrUnavailable if an earlier commit may still become
// durable.
func errorAfter(unknown bool, err error) error {
	if unknown {
		return unavailable(err)
	}
	return err
}

func unavailable(err error) error { return fmt.Errorf("%w: %w", ErrUnavailable, err) }

// pause separates rivals: by nothing before the first try, then by up to 20 ms more
// each time, at most 100 ms.
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
