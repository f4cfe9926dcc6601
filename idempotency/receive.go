package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/loop"
)

// Options of Receive, Once and Middleware. The zero value is usable.
type Options struct {
	// Retention is how long an answer is kept; 24 h if it is not positive.
	Retention time.Duration
	// Wait is how long a request waits for another one in flight under its key, before ErrInFlight: 5 s if zero,
	// for one try if negative. One try waits in the database for no longer than a lock time-out: Receive needs
	// sessions that have one, such as 25 ms. Between tries the request holds no connection.
	Wait time.Duration
	// Read reads a key; ReadKey if nil. One may read several keys in one round trip, or return a stored answer
	// from a cache. That a key is free may only be read from the database.
	Read func(ctx context.Context, q groupcommit.Querier, key Key) (KeyState, error)
	// IsConflict reports whether a commit was refused because the work lost a race of its own, such as one for a
	// version. The work then runs again.
	IsConflict func(error) bool
}

const (
	readTimeout = 5 * time.Second        // of a read, which waits for the standby where commits do
	rivalPause  = 100 * time.Millisecond // longer than a try waits for a lock, so most connections are left to others

	// maxTries bounds the commits of one request: one, unless a rival commits between the read and the claim, the
	// work loses its own race, or the outcome is unknown. A try without an answer of the database counts as
	// failureTries.
	maxTries     = 16
	failureTries = 4
)

// Work carries out a request: it queues its writes on the batch and returns the answer, which the same batch stores.
// It must not write elsewhere, queue transaction control, or use what its statements return: that comes after the
// answer is stored. It is called again after each lost race, with an empty batch and the same now, which is the
// database's time. One of these calls is committed, or none. An error commits nothing and leaves the key free.
type Work func(ctx context.Context, b *pgx.Batch, now time.Time) (Answer, error)

// Receive replays the answer of the key, or commits the work in one batch that begins with the claim of the key: in
// one round trip, which other requests may share, see package groupcommit.
//
// Errors: ErrInvalid for the key, ErrReused, ErrExpired, ErrInFlight, ErrUnknown, what work returned, and what the
// database refused. After ErrInFlight and ErrUnknown the same request finds out what happened. After ErrExpired the
// work was done, and its answer is gone. After any other error nothing was.
//
// If we die here: before the commit nothing is stored and the same request runs from the start; after it the same
// request is answered from the key. Test: TestPromises.
func Receive(ctx context.Context, db groupcommit.DB, key Key, request Request, o Options, work Work) (Result, error) {
	return o.replayOrTry(ctx, db, key, request, func(now, expires time.Time, again bool) (Answer, error) {
		b := &pgx.Batch{}
		answer, err := work(ctx, b, now)
		if err != nil {
			return Answer{}, workError{err}
		}
		Claim(b, key, request, answer, expires)
		all, last := b.QueuedQueries, b.Len()-1 // the claim, which goes first: a taken key refuses the batch before it writes
		b.QueuedQueries = slices.Insert(all[:last], 0, all[last])
		if again { // a retry may collide again, and its whole group would be refused: it has a transaction of its own
			b.Queue(`-- idempotency.Receive
select`) // undeclared, which keeps the batch out of a group
		}
		return answer, db.Commit(ctx, b)
	})
}

// workError is an error of the work, after which there is no other try.
type workError struct{ error }

func (e workError) Unwrap() error { return e.error }

// replayOrTry is the idempotent receiver: it reads the key, and replays its answer or tries the work, until the key
// has an answer or no further try may help. try commits the work and its answer, or returns why it did not; again
// says that there was a try before.
//
//	the key is found                   Replay
//	the server refuses the read        ErrUnknown
//	the work returns an error          that error, or ErrUnknown if the outcome of a try before is unknown
//	a rival has claimed the key, or    again, maxTries times
//	the work has lost its own race
//	a rival is claiming the key        a pause without a connection until Wait is over, then ErrInFlight
//	the commit is refused otherwise    its error, or ErrUnknown as above
//	no answer, or no server            again, maxTries / failureTries times, then ErrUnknown
func (o Options) replayOrTry(ctx context.Context, q groupcommit.Querier, key Key, request Request, try func(now, expires time.Time, again bool) (Answer, error)) (Result, error) {
	if err := key.validate(); err != nil {
		return Result{}, err
	}
	var now time.Time                                        // the same for all tries, of which one commits
	var unknown, again bool                                  // whether a try before may still become durable; whether there was one
	began, wait := time.Now(), cmp.Or(o.Wait, 5*time.Second) //nolint:forbidigo // they decide only how long a rival is waited for
	for tries := 1; ; tries++ {
		state, err := o.ReadKey(ctx, q, key)
		wasRead := err == nil
		if wasRead && state.Found {
			return state.Replay(request)
		}
		if wasRead {
			now = cmp.Or(now, state.Now)
			expires := now.Add(cmp.Or(max(o.Retention, 0), 24*time.Hour)).Truncate(time.Second)
			var answer Answer
			if answer, err = try(now, expires, again); err == nil {
				return Result{Answer: answer, ExpiresAt: expires}, nil
			}
			unknown, again = unknown || groupcommit.OutcomeOf(err) == groupcommit.Unknown, true
		}
		outcome, left := groupcommit.OutcomeOf(err), wait-time.Since(began)   //nolint:forbidigo // as above
		pause := rand.N(time.Duration(min(tries, 5)) * 20 * time.Millisecond) //nolint:gosec // jitter, so that rivals do not meet again
		switch failed, ofWork := errors.AsType[workError](err); {
		case ofWork:
			return Result{}, errorAfter(unknown, failed.error)
		case !wasRead && outcome == groupcommit.Refused: // the key may have an answer
			return Result{}, errorAfter(true, err)
		case isInFlight(err) && left <= 0:
			return Result{}, errorAfter(unknown, ErrInFlight)
		case isInFlight(err): // its commit, or ours, goes on
			tries--
			pause = min(pause+rivalPause, left)
		case wasRead && (groupcommit.Constraint(err) == onceConstraint || o.IsConflict != nil && o.IsConflict(err) || outcome == groupcommit.Locked): // a rival was first
		case outcome == groupcommit.Refused, errors.Is(err, groupcommit.ErrNotSent): // ErrNotSent: it used up its time in the queue
			return Result{}, errorAfter(unknown, err)
		default:
			tries += failureTries - 1
		}
		if tries >= maxTries || !loop.Pause(ctx, pause, nil) {
			return Result{}, errorAfter(true, cmp.Or(context.Cause(ctx), err))
		}
	}
}

// ReadKey reads a key by Read, as a replay does. If groupcommit.OutcomeOf(err) is Refused, reading again does not help.
func (o Options) ReadKey(ctx context.Context, q groupcommit.Querier, key Key) (KeyState, error) {
	read := o.Read
	if read == nil {
		read = ReadKey
	}
	within, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	state, err := read(within, q, key)
	if within.Err() == nil {
		err = groupcommit.Classify(err)
	}
	return state, err
}

// errorAfter marks an error as ErrUnknown if an earlier commit may still become durable.
func errorAfter(unknown bool, err error) error {
	if unknown {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return err
}

// onceConstraint refuses the second answer of a key.
const onceConstraint = "idempotency_keys_once"

// isInFlight reports whether a commit was refused because another one under the key did not end in time. The server
// names the index at which a commit waited, so a lock of the work itself does not count.
func isInFlight(err error) bool {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	return ok && groupcommit.OutcomeOf(err) == groupcommit.Locked && strings.Contains(refusal.Where, onceConstraint)
}
