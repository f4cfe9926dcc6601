package idempotency

import (
	"errors"

	"github.com/payonce/payonce/internal/postgres"
)

// Observer is told what a Receiver meets, for whoever counts it. Either function
// may be nil. They are called by many at once and must return at once; nothing
// depends on them.
type Observer struct {
	// Looking is called before the store is asked for a key, and what it returns
	// after the answer: what the pattern costs each request.
	Looking func() (looked func())
	// Committed is told what became of a commit. A request may need several.
	Committed func(Commit)
}

// Commit is what became of one commit of a request.
type Commit string

// What becomes of commits. All but the first leave nothing, as far as is known.
const (
	CommitMade     Commit = "made"
	CommitTaken    Commit = "taken"     // a rival has had the key
	CommitInFlight Commit = "in_flight" // a rival under the key did not end in time
	CommitLocked   Commit = "locked"    // another lock was in the way for too long, or a deadlock
	CommitLost     Commit = "lost"      // the work lost a race of its own
	CommitFailed   Commit = "failed"    // anything else, the unknown included
)

// Commits are all of them.
func Commits() []Commit {
	return []Commit{CommitMade, CommitTaken, CommitInFlight, CommitLocked, CommitLost, CommitFailed}
}

func (o Observer) looking() (looked func()) {
	if o.Looking == nil {
		return func() {}
	}
	return o.Looking()
}

func (r Receiver) observe(err error) {
	if r.Observer.Committed == nil {
		return
	}
	c := CommitFailed
	switch {
	case err == nil:
		c = CommitMade
	case IsInFlight(err):
		c = CommitInFlight
	case IsTaken(err):
		c = CommitTaken
	case r.Lost != nil && r.Lost(err):
		c = CommitLost
	case errors.Is(err, postgres.ErrUnknown), errors.Is(err, postgres.ErrNotCommitted):
	case postgres.IsTransient(err):
		c = CommitLocked
	}
	r.Observer.Committed(c)
}
