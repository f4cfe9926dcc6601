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

// Options of Receive, Once and Middleware. The zero value is usable.
type Options struct {
	// Retention is how long an answer is kept; 24 h if it is not positive.
	Retention time.Duration
	// Wait is how long a request waits for another one in flight under its key, before ErrInFlight: 5 s if zero, for one
	// try if negative. Between tries it holds no connection. A try waits for a lock for the lock_timeout of its session,
	// so Receive needs sessions that have one: 25 ms in payonce's api and in Once; in a group at most 200 ms.
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
	rivalPause  = 100 * time.Millisecond // longer than a try of payonce's api waits for a lock, so a waiting request seldom holds a connection
	maxTries    = 16                     // of one request that lost races
)

// Work carries out a request: it queues its writes on the batch and returns the answer, which the same batch stores.
// It must not write elsewhere or queue transaction control. The answer cannot depend on what its statements return:
// it is stored before they run. It is called again after each lost race, with an empty batch and the same now, the
// database's time. One of these calls is committed, or none. An error commits nothing and leaves the key free.
type Work func(ctx context.Context, b *pgx.Batch, now time.Time) (Answer, error)

// Receive replays the answer of the key, or commits the work in one batch that begins with the claim of the key: in
// one round trip, which other requests may share, see package groupcommit.
//
// Errors: ErrInvalid for the key, ErrReused, ErrExpired, ErrInFlight, ErrUnknown, what work returned, and what the
// database refused. After ErrInFlight and ErrUnknown the same request finds out what happened. After ErrExpired the
// work was done, and its answer is gone. After any other error nothing was.
func Receive(ctx context.Context, db groupcommit.DB, key Key, request Request, o Options, work Work) (Result, error) {
	calls := 0
	return o.replayOrTry(ctx, db, key, request, func(now, expires time.Time) (Answer, error) {
		writes := &pgx.Batch{}
		answer, err := work(ctx, writes, now)
		if err != nil {
			return Answer{}, workError{err}
		}
		b := &pgx.Batch{}
		Claim(b, key, request, answer, expires) // first: a taken key refuses before any write; in a group the order of Statements decides
		b.QueuedQueries = append(b.QueuedQueries, writes.QueuedQueries...)
		if calls++; calls > 1 { // it may collide again and refuse its group: it has a transaction of its own
			b.Queue(`-- idempotency.Receive
select`) // an undeclared statement (groupcommit.Statement) is in no group
		}
		return answer, db.Commit(ctx, b)
	})
}

// workError is an error of the work, which ends the tries. It does not unwrap: its cause is no commit's.
type workError struct{ error }

// replayOrTry is the idempotent receiver: it reads the key, and tries the work if the key is free. try commits the work
// and its answer, or returns why it did not.
//
//	an answer is stored                        KeyState.replay returns it, ErrReused or ErrExpired
//	the work fails, or the database refuses    its error; also of a batch that was never sent
//	the database refuses a read, or takes 5 s  ErrUnknown: a call before may have stored an answer
//	another commit under the key is in flight  the key is read after a pause, until Wait is over: ErrInFlight
//	a constraint or a lock says: a lost race   the key is read, after 16 tries ErrUnknown
//	no answer, a deadlock, a time-out          the key is read, after 4 such tries or reads ErrUnknown
//
// After a try with an unknown outcome each error but those of replay is ErrUnknown too.
func (o Options) replayOrTry(ctx context.Context, q groupcommit.Querier, key Key, request Request, try func(now, expires time.Time) (Answer, error)) (Result, error) {
	if err := key.validate(); err != nil {
		return Result{}, err
	}
	var now time.Time                                        // the same for all tries, of which one commits
	maybeDurable := false                                    // a try before has an unknown outcome
	began, wait := time.Now(), cmp.Or(o.Wait, 5*time.Second) //nolint:forbidigo // they decide only how long a rival is waited for
	for tries := 0; ; {
		state, err := o.ReadKey(ctx, q, key)
		wasRead := err == nil
		if wasRead && state.Found {
			return state.replay(request)
		}
		if wasRead {
			now = cmp.Or(now, state.Now)
			expires := now.Add(cmp.Or(max(o.Retention, 0), 24*time.Hour)).Truncate(time.Second)
			var answer Answer
			if answer, err = try(now, expires); err == nil {
				return Result{Answer: answer, ExpiresAt: expires}, nil
			}
		}
		outcome := groupcommit.OutcomeOf(err)
		maybeDurable = maybeDurable || wasRead && outcome == groupcommit.Unknown
		pause := rand.N(time.Duration(min(tries+1, 5)) * 20 * time.Millisecond) //nolint:gosec // jitter, so that rivals do not meet again
		left := wait - time.Since(began)                                        //nolint:forbidigo // as above
		switch work, ofWork := errors.AsType[workError](err); {
		case ofWork:
			return Result{}, errorAfter(maybeDurable, work.error)
		case isInFlight(err) && left <= 0:
			return Result{}, errorAfter(maybeDurable, ErrInFlight)
		case isInFlight(err):
			pause = min(pause+rivalPause, left)
		case wasRead && (groupcommit.Constraint(err) == onceConstraint || outcome == groupcommit.Locked ||
			o.IsConflict != nil && o.IsConflict(err)):
			tries++
		case outcome == groupcommit.Refused, errors.Is(err, groupcommit.ErrNotSent):
			return Result{}, errorAfter(maybeDurable || !wasRead, err)
		default:
			tries += maxTries / 4
		}
		if tries >= maxTries || !loop.Pause(ctx, pause, nil) {
			return Result{}, errorAfter(true, cmp.Or(context.Cause(ctx), err))
		}
	}
}

// ReadKey reads a key by Read. A read that has used up its time counts as refused: reading again does not help.
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

// errorAfter marks an error as ErrUnknown if it is unknown whether the key has an answer.
func errorAfter(unknown bool, err error) error {
	if unknown {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return err
}

// onceConstraint refuses the second answer of a key.
const onceConstraint = "idempotency_keys_once"

// isInFlight reports whether a commit did not get its key in time, which the server names: another lock is the work's.
func isInFlight(err error) bool {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	return ok && groupcommit.OutcomeOf(err) == groupcommit.Locked && strings.Contains(refusal.Where, onceConstraint)
}
