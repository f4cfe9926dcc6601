// Package idempotency gives each request one response: a request that arrives
// twice under one key is carried out once and receives the first response twice.
// Its counterpart for messages is package inbox.
//
// # Usage
//
// Once does work with a typed result:
//
//	key, request, err := idempotency.ByContent("acme", "pay.v1", order)
//	key.Value = order.ID
//	payment, duplicate, err := idempotency.Once(ctx, idempotency.Receiver{DB: db}, key, request,
//		func(ctx context.Context, b *pgx.Batch) (Payment, error) {
//			b.Queue(insertPayment, order.ID, order.Amount)
//			return Payment{ID: order.ID}, nil
//		})
//
// Receiver is the same for responses of HTTP. Claim and ReadKey are its two
// statements. Where a sender gives no key, an Extractor derives one: NaturalKey,
// Window and Content.
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
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

var (
	// ErrInFlight is returned while another request under the same key is being
	// committed and did not end within the time that this one may wait.
	ErrInFlight = errors.New("a request under this key is in flight")
	// ErrCrowded is an ErrInFlight: as many requests wait as may.
	ErrCrowded = fmt.Errorf("%w, and too many requests wait", ErrInFlight)
	// ErrUnknown is returned, wrapped, when it is unknown whether the work of a key was
	// done: the database does not answer, or the connection was lost in COMMIT and the key
	// could not be read since. Call again with the same key and the same request: that
	// replays the answer, or does the work.
	ErrUnknown = errors.New("the database does not answer: call again with the same key")
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

	// Read reads the state of a key, for instance several in one round trip; ReadKey from DB
	// if nil.
	Read func(ctx context.Context, key Key) (KeyState, error)

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

// Cache may answer replays in place of the database. It is never asked whether a key
// is free: a miss and a failure mean nothing, so it returns no error.
type Cache interface {
	// Find returns the record under the key if the cache has it for a request with
	// this fingerprint and it has not expired by the database's clock. It takes tens
	// of milliseconds at most.
	Find(ctx context.Context, key Key, fingerprint []byte) Cached
}

// Cached is what a Cache has of a key.
type Cached struct {
	Record Record
	Found  bool

	// Keep gives the cache what the database has stored under the key since Find: a
	// record that was read, or that a confirmed commit claimed. It takes as long as Find
	// and may do nothing; nil if nothing is kept. It is bound to the state of the database
	// that the cache knew at Find, so an answer that a failover loses between commit and
	// Keep is not kept for the database after it.
	Keep func(Record)
}

// Observer receives what a Receiver does, for metrics. Its functions may be nil, are
// called concurrently and must return at once.
type Observer struct {
	// Reading is called before the store is asked for a key, and what it returns
	// after the answer.
	Reading func() (read func())
	// Committed receives the result of each commit. A request may need several.
	Committed func(Commit)
}

// Commit is the result of one commit of a request.
type Commit string

// The results of commits. All but the first leave nothing, as far as is known.
const (
	CommitMade     Commit = "made"
	CommitTaken    Commit = "taken"     // a rival claimed the key before
	CommitInFlight Commit = "in_flight" // a rival under the key did not end in time
	CommitLocked   Commit = "locked"    // another lock was held for too long, or a deadlock
	CommitLost     Commit = "lost"      // the work lost a race of its own
	CommitFailed   Commit = "failed"    // anything else, the unknown included
)

// Commits are all of them.
func Commits() []Commit {
	return []Commit{CommitMade, CommitTaken, CommitInFlight, CommitLocked, CommitLost, CommitFailed}
}
