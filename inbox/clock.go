package inbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// LongestWait is the longest time from now at which anything of the inbox may be due:
// a wait that a handler asks for is cut to it, and a lease and a backoff should not
// exceed it. So what is due later was written while the database's clock was ahead.
const LongestWait = time.Hour

// longest is LongestWait, or what the policy itself sets beyond it.
func (p Policy) longest() time.Duration { return max(LongestWait, p.Lease, p.BackoffCap) }

const (
	correctEvery  = 10 * time.Second // also the time that a message of a clock set right may lose
	correctAtMost = 1000             // rows of one statement
)

// Rows that another transaction has locked are skipped: it writes their due time anew,
// or the next correction finds them. A message that is running may have a holder, who
// keeps it for another lease.
const correctDueTimes = `
with misdated as (
  select id
    from inbox
   where receiver = $1
     and status in ('pending', 'running')
     and due_at > now() + $2::interval
   order by due_at desc
   limit $4
     for update skip locked
)
update inbox
   set due_at = clock_timestamp() + case status when 'running' then $3::interval else interval '0' end
 where id = any (array(select id from misdated))`

// correct makes due what is due later than any rule could set. The database's clock
// was ahead then, and has been set right.
//
// If we die here: all rows of a statement are corrected or none is, and the next
// worker does it. Test: TestProcessor_takesWhatAClockThatWasAheadLeft.
func (r *run) correct(ctx context.Context) {
	if time.Since(r.corrected) < correctEvery { //nolint:forbidigo // it decides only how often the database is asked
		return
	}
	b := &pgx.Batch{}
	b.Queue(correctDueTimes, r.Receiver, r.Policy.longest(), r.Policy.Lease, correctAtMost)
	if err := r.DB.Commit(ctx, b); err != nil {
		r.Log.WarnContext(ctx, "due times not corrected", "receiver", r.Receiver, "error", err)
		return
	}
	r.corrected = time.Now() //nolint:forbidigo // as above
}
