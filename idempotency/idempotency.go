// Package idempotency gives each key one outcome: a function or an HTTP request that
// arrives twice under one key takes effect once, and returns its first result twice. The
// key, the writes and the result are one PostgreSQL transaction. Its counterpart for
// messages is package inbox.
//
// # Usage
//
//   - Once wraps any function that writes through a pgx.Tx: on a pool, or as a part of the
//     caller's own transaction.
//   - Middleware wraps an http.Handler, for the header Idempotency-Key.
//   - Receiver is for a service under load: the work queues its writes on a pgx.Batch, and
//     key, writes and answer reach the database in one round trip. The work cannot use what
//     its statements return.
//
// Apply Schema in a schema of the pool's search_path. For a
// sender that gives no key, NaturalKey, Window and Content derive one.
//
// # What happens
//
//	two calls at once                 one claims the key; the other waits for it, then
//	                                  replays its result or returns ErrInFlight
//	another request under the key     ErrReused, with the members that differ
//	the work fails or panics          everything is rolled back and the key is free;
//	                                  a FinalError is stored as the outcome
//	the process dies                  before COMMIT as above; after it the next call replays
//	the connection is lost in COMMIT  the key is read: a replay; ErrNotCommitted of package
//	                                  groupcommit; or ErrUnknown: call again with the key
//	the result has expired            ErrExpired: the work is not done again
//
// # Which guarantee rests on what
//
//	one outcome per key               unique constraint idempotency_keys_once
//	key, writes and result, or none   one transaction
//	no part of a result               check idempotency_keys_kept_or_expired
//	no fault of a server is stored    check idempotency_keys_status_code_check
//	an expired key stays used         its row, which ExpireKeys keeps as a tombstone
//
// None rests on a cache, a clock, an isolation level or a time-out.
//
// # What this does not give you
//
//   - It does not make an effect outside the transaction happen once. A mail or a call to
//     another system belongs in an outbox, or has an idempotency key of its own there.
//   - It does not return the current state: a replay is the first result.
//   - It does not save connections: each call of Once and Middleware holds one while it works
//     or waits. Work that takes a second one from the same pool can exhaust it.
//   - Under repeatable read it does not return a concurrent call's result: the error is
//     ErrInFlight even after that call's COMMIT. Call again.
//   - It does not know that a standby has a commit if an operator ends the commit's wait for
//     that standby. Replays wait anew.
//
// # How to expire
//
// A key expires by the database's clock. Call ExpireKeys now and then, until it returns less than
// its limit: it deletes results, and leaves tombstones. To forget a key, delete its row when
// no client can send it any more: it is new then.
package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

var (
	// ErrInFlight is returned while another request under the same key is being
	// committed and did not end within the time that this one may wait.
	ErrInFlight = errors.New("a request under this key is in flight")
	// ErrCrowded wraps ErrInFlight: Receiver.Waiters is full.
	ErrCrowded = fmt.Errorf("%w, and too many requests wait", ErrInFlight)
	// ErrUnknown is returned, wrapped, when it is unknown whether the work of a key was
	// done: the database did not answer, the connection was lost in COMMIT and the key could
	// not be read since, or data that the answer depends on could not be read. Call again with
	// the same key and the same request: that replays the answer, or does the work.
	ErrUnknown = errors.New("the outcome is unknown: call again with the same key")
)

// DefaultRetention is how long an answer is kept if no other time is set.
const DefaultRetention = 24 * time.Hour

// Receiver is the idempotent receiver of requests. The zero value of each field but
// DB is usable.
type Receiver struct {
	DB groupcommit.DB

	// Read reads the state of a key; ReadKey from DB if nil. One may read several keys in one
	// round trip, or return a stored answer from a cache. That a key is free may only be read from DB.
	Read func(ctx context.Context, key Key) (KeyState, error)

	// Retention is how long an answer is kept; DefaultRetention if zero.
	Retention time.Duration

	// Wait is how long a request waits for another one under its key, at most
	// MaxWait; the pool's lock time-out if zero, which should then have one.
	Wait time.Duration

	// Waiters bounds the requests that wait longer than the pool's lock time-out: its
	// capacity is their number, and one more is refused as ErrCrowded. Each holds a
	// connection, so it should be a part of the pool. There is no bound if nil.
	Waiters chan struct{}

	// IsConflict reports whether a commit was refused because the work lost a race of its
	// own, such as one for a version. The work then runs again.
	IsConflict func(error) bool

	// Reading, if set, is called before the store is asked for a key, and what it returns
	// after the answer. OnCommit, if set, receives the result of each commit, of which a
	// request may need several. Both must return at once.
	Reading  func() (read func())
	OnCommit func(CommitResult)
}

// Result is the answer to a request, and whether it is a replay.
type Result struct {
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

// CommitResult is the result of one commit of a request.
type CommitResult string

// The results of commits. All but the first leave nothing, as far as is known.
const (
	CommitMade     CommitResult = "made"
	CommitTaken    CommitResult = "taken"     // a rival claimed the key before
	CommitInFlight CommitResult = "in_flight" // a rival under the key did not end in time
	CommitLocked   CommitResult = "locked"    // another lock was held for too long, or a deadlock
	CommitLost     CommitResult = "lost"      // the work lost a race of its own
	CommitFailed   CommitResult = "failed"    // anything else, the unknown included
)

// CommitResults are all of them.
func CommitResults() []CommitResult {
	return []CommitResult{CommitMade, CommitTaken, CommitInFlight, CommitLocked, CommitLost, CommitFailed}
}
