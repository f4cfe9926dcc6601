package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/loop"
)

// Beginner begins a transaction: a *pgxpool.Pool, a *pgx.Conn, or the caller's own pgx.Tx,
// in which it is a savepoint.
type Beginner interface {
	groupcommit.Querier
	Begin(ctx context.Context) (pgx.Tx, error)
}

// The claim alone has the time-outs of Wait: the statements of the work have the session's.
const (
	saveTimeouts = `
select set_config('idempotency.lock_timeout', current_setting('lock_timeout'), true),
       set_config('idempotency.statement_timeout', current_setting('statement_timeout'), true)`

	restoreTimeouts = `
select set_config('lock_timeout', current_setting('idempotency.lock_timeout'), true),
       set_config('statement_timeout', current_setting('idempotency.statement_timeout'), true)`
)

// claimKeys inserts the claims of keys. A claim is a row without an answer, as a tombstone is,
// and no other transaction sees it. Of concurrent claims the unique constraint lets one insert;
// the others wait here for its end. Keys are claimed in one order, so that claims do not
// deadlock.
const claimKeys = `
insert into idempotency_keys
       (scope, operation, key, fingerprint, status_code, expires_at)
select $1, $2, value, $4, 200, date_trunc('second', clock_timestamp() + $5::interval)
  from unnest($3::text[]) as k(value)
 order by value collate "C"
    on conflict on constraint idempotency_keys_once do nothing
returning key, expires_at`

const storeAnswer = `
update idempotency_keys
   set request      = $4,
       status_code  = $5,
       content_type = $6,
       location     = $7,
       body         = $8,
       headers      = $9
 where scope = $1
   and operation = $2
   and key = any ($3)`

const (
	// commitTimeout bounds COMMIT, which goes on if the caller's context ends.
	commitTimeout = 15 * time.Second
	// rollbackTimeout bounds ROLLBACK. The server rolls back a lost connection without it.
	rollbackTimeout = 5 * time.Second
	// maxResolves bounds the attempts to learn the outcome of a commit.
	maxResolves = 4
)

var (
	errNilDatabase = errors.New("the database is nil")
	errPanicked    = errors.New("the work panicked")
)

// txWork carries out a request in a transaction.
type txWork func(ctx context.Context, tx pgx.Tx) (Answer, error)

// once replays the answer of the key, or claims it, does the work and stores its answer in
// one transaction. An answer of 400 or above is stored, and the work's writes are undone.
func once(ctx context.Context, db Beginner, key Key, o Options, work txWork) (Result, error) {
	if pool, ok := db.(*pgxpool.Pool); db == nil || ok && pool == nil {
		return Result{}, errNilDatabase
	}
	for _, value := range o.values(key) {
		if err := (Key{key.Scope, key.Operation, value}).validate(); err != nil {
			return Result{}, err
		}
	}
	if o.Slots != nil {
		select {
		case o.Slots <- struct{}{}:
			defer func() { <-o.Slots }()
		case <-ctx.Done():
			return Result{}, unknownOutcome(context.Cause(ctx))
		}
	}
	result, err := Result{}, errPanicked
	if o.OnCommit != nil {
		defer func() { o.OnCommit(commitOf(result, err)) }()
	}
	result, err = attempt(ctx, db, key, o, work)
	if cause, ok := errors.AsType[*lostCommitError](err); ok {
		result, err = resolve(ctx, db, key, o, cause.error)
	}
	return result, err
}

func commitOf(result Result, err error) CommitResult {
	switch {
	case errors.Is(err, ErrInFlight):
		return CommitInFlight
	case result.Replayed:
		return CommitTaken
	case err != nil:
		return CommitFailed
	}
	return CommitMade
}

// lostCommitError is the error of a COMMIT without an answer.
type lostCommitError struct{ error }

// values are those of the keys to claim.
func (o Options) values(key Key) []string { return append([]string{key.Value}, o.Also...) }

// attempt is one transaction.
func attempt(ctx context.Context, db Beginner, key Key, o Options, work txWork) (Result, error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return Result{}, claimError(err)
	}
	defer rollback(ctx, tx) // also after a panic of the work
	taken, expires, err := claim(ctx, tx, key, o)
	if err != nil {
		return Result{}, err
	}
	if taken != nil {
		rollback(ctx, tx) // it frees the connection
		state, err := confirmed(ctx, *taken, func(ctx context.Context, sql string, key Key) (KeyState, error) {
			return readKey(ctx, db, sql, key)
		})
		if err == nil && !state.Found { // its row went since
			err = ErrInFlight
		}
		if err != nil {
			return Result{}, err
		}
		return replay(state.Record, o.Request)
	}
	answer, err := inSavepoint(ctx, tx, work)
	if err != nil {
		return Result{}, err
	}
	if err := commit(ctx, tx, key, o, answer); err != nil {
		return Result{}, err
	}
	return Result{Answer: answer, ExpiresAt: expires}, nil
}

// commit stores the answer of the claimed keys and commits. It goes on if ctx ends.
func commit(ctx context.Context, tx pgx.Tx, key Key, o Options, answer Answer) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	_, err := tx.Exec(ctx, storeAnswer, key.Scope, key.Operation, o.values(key), o.Request.Canonical,
		answer.StatusCode, answer.ContentType, answer.Location, append([]byte{}, answer.Body...), answer.headers())
	if err != nil {
		return refusal("store the answer of a key", err)
	}
	if err = tx.Commit(ctx); errors.Is(groupcommit.Classify(err), groupcommit.ErrUnknown) {
		return &lostCommitError{err}
	}
	return err
}

func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx) // it has ended, or its connection is lost and the server rolls it back
}

// claim claims the keys, or returns the state of the first that is taken.
func claim(ctx context.Context, tx pgx.Tx, key Key, o Options) (taken *KeyState, expires time.Time, err error) {
	values, claimed := o.values(key), map[string]bool{}
	states := make([]*KeyState, len(values))
	for i, value := range values {
		states[i] = &KeyState{Key: Key{key.Scope, key.Operation, value}}
	}
	b := &pgx.Batch{}
	b.Queue(saveTimeouts)
	Wait(b, cmp.Or(o.Wait, DefaultWait))
	b.Queue(claimKeys, key.Scope, key.Operation, values, append([]byte{}, o.Request.Fingerprint...),
		cmp.Or(max(o.Retention, 0), DefaultRetention)).Query(func(rows pgx.Rows) error {
		var value string
		_, err := pgx.ForEachRow(rows, []any{&value, &expires}, func() error {
			claimed[value] = true
			return nil
		})
		return err
	})
	QueueKeys(b, states)
	b.Queue(restoreTimeouts)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, expires, claimError(err)
	}
	for _, s := range states {
		switch {
		case claimed[s.Key.Value]:
		case s.Found:
			return s, expires, nil
		default: // its row went between the two statements
			return nil, expires, ErrInFlight
		}
	}
	return nil, expires, nil
}

// claimError is the error of a claim. Under repeatable read the server refuses one whose
// rival has committed: the next call replays.
func claimError(err error) error {
	outcome := groupcommit.OutcomeOf(groupcommit.Classify(err))
	if outcome == groupcommit.Locked || outcome == groupcommit.Contended {
		return fmt.Errorf("%w: %w", ErrInFlight, err)
	}
	return refusal("claim an idempotency key", err)
}

// refusal is the error of a statement of this package that the server refused, or did not
// answer.
func refusal(what string, err error) error {
	outcome := groupcommit.OutcomeOf(groupcommit.Classify(err))
	if !errors.Is(err, pgx.ErrTxClosed) && (outcome == groupcommit.Unknown || outcome == groupcommit.NotCommitted) {
		return unknownOutcome(err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// inSavepoint does the work in a savepoint, so that neither a failed statement of it nor
// its Commit or Rollback ends the claim.
func inSavepoint(ctx context.Context, tx pgx.Tx, work txWork) (Answer, error) {
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return Answer{}, unknownOutcome(err)
	}
	answer, err := work(ctx, savepoint)
	if err != nil {
		return Answer{}, err
	}
	end := savepoint.Commit
	if answer.StatusCode >= 400 {
		end = savepoint.Rollback
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	err = end(ctx)
	switch {
	case err == nil:
		return answer, nil
	case errors.Is(err, pgx.ErrTxClosed), tx.Conn().PgConn().IsBusy():
		return Answer{}, fmt.Errorf("the work ended its transaction itself, or left rows open: %w", err)
	}
	return Answer{}, refusal("end the writes of the work", err)
}

// resolve learns the outcome of a commit whose answer was lost. A claim of its keys waits
// for that transaction: it finds the answer, or succeeds if there was a rollback. ErrUnknown
// if the database does not say.
func resolve(ctx context.Context, db Beginner, key Key, o Options, cause error) (Result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	o.Wait = DefaultWait
	for try := range maxResolves {
		result, err := attempt(ctx, db, key, o, func(context.Context, pgx.Tx) (Answer, error) { return Answer{}, groupcommit.ErrNotCommitted })
		switch {
		case errors.Is(err, groupcommit.ErrNotCommitted):
			return Result{}, fmt.Errorf("%w, and the key is free: %w", err, cause)
		case err == nil, errors.Is(err, ErrReused), errors.Is(err, ErrExpired):
			return result, err
		} // no other error says what became of the commit
		loop.Pause(ctx, time.Duration(try+1)*100*time.Millisecond, nil)
	}
	return Result{}, unknownOutcome(cause)
}
