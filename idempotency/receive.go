package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/loop"
)

const (
	// maxTries bounds the commits of one request. More than one is needed only when a
	// rival commits between the read and the claim, when the work lost its own
	// race, when a rival is waited for, or when the outcome of a commit is unknown.
	maxTries = 16

	// maxFailures bounds the tries that end without an answer of the store.
	maxFailures = 4
)

// Receive replays the answer of the key, or commits the work in one batch that begins
// with the claim of the key.
//
// Errors: ErrInvalid for the key, ErrReused, ErrExpired, ErrInFlight, ErrUnknown, what work
// returned, and what the store refused; IsTaken is true of that if work claims keys of its
// own. After ErrInFlight and ErrUnknown the same request finds out what happened. After
// any other error nothing has.
//
// If we die here: before the commit nothing is stored and the same request runs from
// the start; after it the same request is answered from the key.
// Test: TestReceive_overACutConnection.
func (r Receiver) Receive(ctx context.Context, key Key, request Request, work Work) (Result, error) {
	if err := key.validate(); err != nil {
		return Result{}, err
	}
	if r.DB == nil {
		return Result{}, errNilDatabase
	}
	return r.carryOut(ctx, key, request, work)
}

// carryOut commits the work, until the key has an answer or no further try may help.
func (r Receiver) carryOut(ctx context.Context, key Key, request Request, work Work) (Result, error) {
	var (
		now     time.Time // the same for all tries, so that each writes the same
		last    error     // of the last try
		unknown bool      // a commit may still become durable
		waits   = r.Waiters == nil
	)
	for try, failures := 0, 0; try < maxTries && failures < maxFailures; try++ {
		state, err := r.read(ctx, try, key)
		switch {
		case errors.Is(err, ErrUnknown):
			return Result{}, err
		case isMisfit(err):
			return Result{}, errorAfter(unknown, err)
		case err != nil:
			last, failures = err, failures+1
			continue
		case state.Found:
			return replay(state.Record, request)
		case IsTaken(last): // by another key, which the work claims
			return Result{}, errorAfter(unknown, last)
		}
		now = cmp.Or(now, state.Now)
		b := &pgx.Batch{}
		answer, err := work(ctx, b, now)
		if err != nil {
			return Result{}, errorAfter(unknown, err)
		}
		record := r.record(request, answer, now)
		err = r.DB.Commit(ctx, r.claimed(b, key, request, record, waits))
		switch result, outcome := r.observe(err), groupcommit.OutcomeOf(err); {
		case result == CommitMade:
			return Result{Answer: answer, ExpiresAt: record.ExpiresAt}, nil
		case result == CommitInFlight && (waits || r.Wait == 0):
			return Result{}, ErrInFlight
		case result == CommitInFlight: // it has taken longer than the pool's lock time-out
			select {
			case r.Waiters <- struct{}{}:
				defer func() { <-r.Waiters }() // once: waits is true from now on
				waits = true
			default:
				return Result{}, ErrCrowded
			}
		case errors.Is(err, groupcommit.ErrNotSent), // it has waited as long as it may
			result == CommitFailed && outcome != groupcommit.Unknown && !outcome.Retryable():
			return Result{}, errorAfter(unknown, err)
		case result == CommitFailed || outcome == groupcommit.Contended:
			// If the commit became durable, the key has the answer. If it is still in
			// flight, the same batch waits for it.
			failures++
			unknown = unknown || outcome == groupcommit.Unknown
		}
		last = err
	}
	return Result{}, unknownOutcome(last)
}

func replay(record Record, request Request) (Result, error) {
	answer, err := record.Replay(request)
	return Result{Answer: answer, ExpiresAt: record.ExpiresAt, Replayed: true}, err
}

// read returns the state of the key. Before another try it pauses, so that rivals do not
// meet again. A record that it returns survives a failover.
func (r Receiver) read(ctx context.Context, try int, key Key) (state KeyState, err error) {
	if try > 0 {
		longest := time.Duration(min(try, 5)) * 20 * time.Millisecond
		loop.Pause(ctx, rand.N(longest), nil) //nolint:gosec // jitter
	}
	if ctx.Err() != nil {
		return KeyState{}, unknownOutcome(context.Cause(ctx))
	}
	if r.Reading != nil {
		defer r.Reading()()
	}
	if r.Read != nil {
		state, err = r.Read(ctx, key)
	} else {
		state, err = ReadKey(ctx, r.DB, key)
	}
	if err != nil {
		return state, err
	}
	return confirmed(ctx, state, func(ctx context.Context, sql string, key Key) (KeyState, error) {
		return commitRead(ctx, r.DB, sql, key)
	})
}

// isMisfit reports whether the server refused a statement because a table, a column or a right
// is missing, which no repetition brings.
func isMisfit(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && strings.HasPrefix(refused.Code, "42")
}

// claimed returns the batch to commit. The claim comes first, so that a taken key
// refuses the batch before it writes anything else.
func (r Receiver) claimed(work *pgx.Batch, key Key, request Request, record Record, waits bool) *pgx.Batch {
	b := &pgx.Batch{}
	if waits && r.Wait > 0 {
		Wait(b, r.Wait)
	}
	Claim(b, key, request, record.Answer, record.ExpiresAt)
	b.QueuedQueries = append(b.QueuedQueries, work.QueuedQueries...)
	return b
}

// record is what is stored for an answer at a time.
func (r Receiver) record(request Request, answer Answer, now time.Time) Record {
	retention := cmp.Or(max(r.Retention, 0), DefaultRetention)
	return Record{
		Answer: answer, Fingerprint: request.Fingerprint, Canonical: request.Canonical,
		ExpiresAt: now.Add(retention).Truncate(time.Second),
	}
}

// observe classifies the error of a commit and reports it.
func (r Receiver) observe(err error) (result CommitResult) {
	switch outcome := groupcommit.OutcomeOf(err); {
	case err == nil:
		result = CommitMade
	case isInFlight(err):
		result = CommitInFlight
	case IsTaken(err):
		result = CommitTaken
	case r.IsConflict != nil && r.IsConflict(err):
		result = CommitLost
	case outcome == groupcommit.Locked, outcome == groupcommit.Contended:
		result = CommitLocked
	default:
		result = CommitFailed
	}
	if r.OnCommit != nil {
		r.OnCommit(result)
	}
	return result
}

// errorAfter marks an error as ErrUnknown if an earlier commit may still become
// durable.
func errorAfter(unknown bool, err error) error {
	if unknown {
		return unknownOutcome(err)
	}
	return err
}

func unknownOutcome(err error) error { return fmt.Errorf("%w: %w", ErrUnknown, err) }
