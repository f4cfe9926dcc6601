// Package inbox is the idempotent receiver of messages: it stores each message once and runs
// its handler until it succeeds. Of each ordering key, one message at a time has a claim.
//
// A broker delivers at least once: again after a lost acknowledgment, a crash or a rebalance. A receiver that first
// acts and then acknowledges acts twice; one that first acknowledges loses the message. The inbox stores the message,
// acknowledges after that commit, and ends it in the transaction that holds the handler's effect.
//
//	p, err := inbox.New(inbox.Options{DB: groupcommit.New(pool, groupcommit.Options{}), Receiver: "shop", Handle: handle})
//	go p.Run(ctx)
//	err = p.Consume(ctx, subscriber, "orders", nil)
//
// A handler ends its message by Delivery.Done in its transaction, or by Delivery.Commit with
// its batch. A transaction of the same database sends a message by Append, without a broker.
//
// # Guarantees and what they rest on
//
//	a message is stored once for each receiver     unique inbox_message_once
//	one claim of an ordering key at a time         unique index inbox_one_first_per_key, check inbox_running_is_first
//	only the newest holder ends a message          check inbox_done_by_holder, in the handler's transaction
//	a message is not done without a holder         check inbox_done_has_fence
//
// # Failures
//
//   - The process dies: its registration in inbox_holders ends with the lease, and another
//     process handles its messages again, each after a random pause that grows with the deaths,
//     so that a message which kills its process soon runs alone. Test: TestPoison.
//   - The database was away: a processor lets the others register again before it takes over.
//   - The outcome of a commit is unknown: the message is delivered or handled again.
//   - A handler fails or panics: it is retried with backoff and full jitter, and after too many
//     attempts the message becomes a dead letter (package deadletter). A wait for an external service is no attempt.
//
// # What this does not give you
//
// A handler runs again after a crash: what it does outside its transaction needs a key of its own. The order of a key
// is that of reception, not of sending. A message that is delivered again after DeleteExpired has deleted it is new.
//
// Tables: inbox, inbox_holders; and the type inbox_ended.
package inbox

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

//go:embed schema.sql
var schema string

// Schema returns the SQL that creates the tables, which need no other one, in the first schema of the search_path.
func Schema() string { return schema }

// Message is what was received.
type Message struct {
	ID          string // unique for each receiver; the sender's, or derived, see Read
	Type        string
	OrderingKey string // messages of one key are handled one at a time; the id where empty
	Partition   string // is claimed no more once it has 7/8 of a processor's slots; of two or more it never has all; "" is none

	// Payload belongs to the id byte for byte. Another payload under a known id is a dead letter.
	Payload  []byte
	Metadata map[string]string
}

// Delivery is a message that a holder has claimed.
type Delivery struct {
	Message

	Attempt   int       // from 1, and again after a wait; it counts deaths
	Waits     int       // how often the handler has waited for an external service
	Deaths    int       // holders in a row that died or went silent with it before this one
	ClaimedAt time.Time // database time; a message that waited for a time is claimed no earlier

	receiver       string
	holder         string
	row, fence     int64
	cancel         context.CancelCauseFunc // ends the handler's context
	behind         bool                    // a message of its key waited when it was claimed: its end wakes the loop
	missed         int64                   // slots.missed before its claim: if it has grown, its end wakes the loop
	endedByHandler bool                    // by its handler's transaction
}

// Handler handles one delivery. It may be called again for the same message, after a crash even while the first call
// still runs in another process, so it first looks at what is already done. The context ends when another holder has
// taken over or the program has no time left to drain. After nil the message is done: by the handler's Delivery.Commit
// or Delivery.Done, else by a commit of the inbox.
type Handler func(ctx context.Context, d *Delivery) error

// WaitError is returned by a handler that cannot continue because of an external service. The message is retried later,
// and no attempt is counted. A lock that a commit does not get is such a wait too.
type WaitError struct {
	// AtLeast is the time until the next attempt, at most LongestWait. A longer backoff counts, unless NoDeadline is set.
	AtLeast time.Duration

	// NoDeadline says that the service answered, and that it needs this long: a payment that is processing. Such a wait
	// has no backoff and never makes a dead letter, and GiveUpAfter starts anew with the next wait that has a deadline.
	NoDeadline bool

	// NeedsOperator says that only an operator can end the wait, as where the service
	// refuses a secret. The claim ends with EndBlocked.
	NeedsOperator bool

	Err error
}

func (e *WaitError) Error() string { return fmt.Sprintf("waiting: %v", e.Err) }
func (e *WaitError) Unwrap() error { return e.Err }

// DeadLetterError is returned by a handler that no retry can help: the message
// becomes a dead letter, and an operator decides. The operator reads its text.
type DeadLetterError struct{ Err error }

func (e *DeadLetterError) Error() string { return fmt.Sprintf("dead letter: %v", e.Err) }
func (e *DeadLetterError) Unwrap() error { return e.Err }

// Policy bounds the work on a message. What is zero has the default that is named with it.
type Policy struct {
	// Lease is how long a silent holder keeps its messages; 3 s. While it holds any, one row for
	// the processor is renewed in each third of it.
	Lease time.Duration
	// MaxAttempts is how many errors and panics since the last wait make a dead letter; 12. So do 4 × MaxAttempts
	// holders in a row that died or went silent: processes that are killed from outside hit innocent messages too.
	MaxAttempts int
	// GiveUpAfter makes a dead letter of a message that has waited so long for a lock, or a service that does not
	// answer, from the first wait; 72 h. An error does not restart it, or a message that waits and fails by turns
	// would never be given up.
	GiveUpAfter time.Duration
	// BackoffBase and BackoffCap bound the pause before the next attempt: a random part
	// of min(cap, base × 2ⁿ); 200 ms and a minute.
	BackoffBase, BackoffCap time.Duration
	// DeadLetters says what a dead letter does to the younger messages of its key; Block.
	DeadLetters DeadLetters
}

// LongestWait is the longest time from now at which a message may be due: a wait that a
// handler asks for is cut to it, and a lease and a backoff should not exceed it. A later due
// time was written while the database's clock was ahead, and is repaired.
const LongestWait = 6 * time.Hour

// backoff is a random part of min(BackoffCap, BackoffBase × 2ⁿ).
func (p Policy) backoff(n int) time.Duration {
	longest := min(float64(p.BackoffCap), float64(p.BackoffBase)*math.Pow(2, float64(n)))
	return rand.N(max(0, time.Duration(longest)) + 1) //nolint:gosec // it is no secret
}

// DeadLetters is what a dead letter does to the younger messages of its ordering key. It never blocks another key.
type DeadLetters int

const (
	// Block holds them back until an operator retries or discards the dead letter: for handlers that rely on the order.
	Block DeadLetters = iota
	// Pass lets them continue: for handlers that find out at each call what is left to
	// do. A dead letter that is retried then runs after younger messages.
	Pass
)

// End is how the claim of a message ended, as its holder knows it.
type End string

// The ends of claims. A message that failed or waited may be a dead letter after it: see Policy.
const (
	EndDone       End = "done"
	EndFailed     End = "failed"      // by an error or a panic
	EndWaiting    End = "waiting"     // for an external service, or for a lock that the handler's commit did not get
	EndBlocked    End = "blocked"     // it waits for an operator
	EndDeadLetter End = "dead_letter" // a dead letter: by a DeadLetterError, or because its holders died
	EndReleased   End = "released"    // the program stops
	EndLost       End = "lost"        // not applied: another holder has claimed the message, or it had ended before
	EndNotStored  End = "left"        // the end could not be stored; the message is handled again
)

// Ends are all ends of claims.
func Ends() []End {
	return []End{EndDone, EndFailed, EndWaiting, EndBlocked, EndDeadLetter, EndReleased, EndLost, EndNotStored}
}
