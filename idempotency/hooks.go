package idempotency

import (
	"context"

	"github.com/payonce/payonce/internal/postgres"
)

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
	// record that was read, or that a confirmed commit claimed. It does not wait and
	// may do nothing; nil if nothing is kept. It is bound to the state of the database
	// that the cache knew at Find, so an answer that a failover loses between commit and
	// Keep is not kept for the database after it.
	Keep func(Record)
}

func (c Cached) keep(record Record) {
	if c.Keep != nil && !record.Expired {
		c.Keep(record)
	}
}

// findCached asks the cache. It drops a record of another request and an expired one:
// the database answers those.
func findCached(ctx context.Context, cache Cache, key Key, request Request) Cached {
	cached := cache.Find(ctx, key, request.Fingerprint)
	if _, err := cached.Record.Replay(request); cached.Found && err != nil {
		return Cached{Keep: cached.Keep}
	}
	return cached
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

func (o Observer) reading() (read func()) {
	if o.Reading == nil {
		return func() {}
	}
	return o.Reading()
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

// observe classifies the error of a commit and reports it.
func (r Receiver) observe(err error) Commit {
	result := r.resultOf(err)
	if r.Observer.Committed != nil {
		r.Observer.Committed(result)
	}
	return result
}

func (r Receiver) resultOf(err error) Commit {
	switch {
	case err == nil:
		return CommitMade
	case isInFlight(err):
		return CommitInFlight
	case IsTaken(err):
		return CommitTaken
	case r.Lost != nil && r.Lost(err):
		return CommitLost
	}
	switch postgres.OutcomeOf(err) {
	case postgres.Locked, postgres.Contended:
		return CommitLocked
	default:
		return CommitFailed
	}
}
