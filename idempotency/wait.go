package idempotency

import (
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// MaxWait is the longest that Wait waits. A commit has 15 s in all, and after a
// wait there must be time for the rest of the batch.
const MaxWait = 10 * time.Second

// afterWait is what a statement has beside the wait, so that the lock time-out
// is always the one that ends it: a statement time-out says nothing of a rival.
const afterWait = 2 * time.Second

// Settings that are local end with the transaction, and the batch is one.
const setTimeouts = `
select set_config('lock_timeout', $1, true),
       set_config('statement_timeout', $2, true)`

// Wait queues how long the statements after it in this batch may each wait for a
// lock, such as Claim for a rival under the same key: 1 ms to MaxWait, and no
// longer than it takes. Queue it first. The pool's time-outs are back after the
// batch, however that ends.
func Wait(b *pgx.Batch, atMost time.Duration) {
	// Zero would be no limit at all.
	atMost = min(max(atMost, time.Millisecond), MaxWait)
	b.Queue(setTimeouts, milliseconds(atMost), milliseconds(max(atMost+afterWait, MaxWait)))
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
