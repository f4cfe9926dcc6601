package inbox

import (
	"context"
	"fmt"
	"time"
)

// Handler works on one delivery. It may be called again for the same message,
// after a crash even while the first call is still running somewhere; it first
// looks at what is done already.
//
// The context ends when the lease is lost or the program has no time left to
// drain.
type Handler func(ctx context.Context, d Delivery) (Result, error)

// Result says what a handler that met no error leaves to the inbox.
type Result int

const (
	// Complete asks the inbox to mark the message done, in a commit of its own.
	Complete Result = iota
	// Completed says that Done rode in the handler's last commit.
	Completed
)

// WaitError is returned by a handler that cannot go on because of something
// outside: it is tried again later, and no attempt is counted.
type WaitError struct {
	AtLeast time.Duration // earliest next try, from now, at most LongestWait; the backoff may be longer

	// Patient says that the outside has answered, and that it takes this long: a
	// payment that is processing. Such a wait never parks the message, and
	// GiveUpAfter counts anew from the next one that is not patient.
	Patient bool

	// Untried says that the outside was not asked this time, for a reason that is
	// ours. Such a wait never parks the message, and GiveUpAfter counts on from
	// where it began, if it had begun.
	Untried bool

	Err error
}

func (e *WaitError) Error() string { return fmt.Sprintf("waiting: %v", e.Err) }
func (e *WaitError) Unwrap() error { return e.Err }

// ParkError is returned by a handler that can never go on by itself: a human has
// to decide. Its text is what the human will read.
type ParkError struct{ Err error }

func (e *ParkError) Error() string { return fmt.Sprintf("parked: %v", e.Err) }
func (e *ParkError) Unwrap() error { return e.Err }

// Policy bounds the work on a message.
type Policy struct {
	// Lease is how long a silent holder keeps a message; it is renewed every third.
	Lease time.Duration
	// MaxAttempts parks a message after so many errors and panics since it last waited.
	MaxAttempts int
	// MaxDeaths parks a message after so many holders died or went silent with it,
	// one after another: 4 × MaxAttempts where 0.
	MaxDeaths int
	// GiveUpAfter parks a message that has waited for so long for an outside that
	// does not answer, counted from the first wait. An error between two waits does not
	// begin it anew: a wait takes back the count of errors, so a message that waits and
	// fails by turns would never be parked.
	GiveUpAfter time.Duration
	// BackoffBase and BackoffCap bound the wait before the next try: a random
	// part of min(cap, base × 2ⁿ).
	BackoffBase, BackoffCap time.Duration
	// Parked says what becomes of the younger messages of a parked one's key.
	Parked Parked
}

func (p Policy) maxDeaths() int {
	if p.MaxDeaths > 0 {
		return p.MaxDeaths
	}
	return 4 * p.MaxAttempts
}

// doublings are how often BackoffBase doubles until BackoffCap cuts it. Beyond, an
// interval of the database could overflow.
func (p Policy) doublings() (n int) {
	for wait := p.BackoffBase; 0 < wait && wait < p.BackoffCap; wait *= 2 {
		n++
	}
	return n
}

// Parked is what a parked message does to the younger ones of its ordering key.
// It never holds up another key.
type Parked int

const (
	// Block holds them up until an operator retries or discards the parked one:
	// for handlers that rely on the order.
	Block Parked = iota
	// Pass lets them go on: for handlers that find out by themselves what is left
	// to do. A parked message that is retried then comes after younger ones.
	Pass
)
