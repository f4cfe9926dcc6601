package inbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/testdb"
)

func TestProcessor_claimsMessagesWhoseDueTimeIsTooFarAhead(t *testing.T) {
	testdb.Long(t, "it waits for a correction")
	t.Parallel()
	db := testdb.Reused(t)
	for _, id := range []string{"waits", "died with its holder", "waits by a rule"} {
		put(t, db, id, id)
	}
	write(t, db, `update inbox set due_at = now() + interval '1 day' where message_id <> 'waits by a rule'`)
	write(t, db, `update inbox set status = 'running', attempts = 1, fence = 1 where message_id like 'died%'`)
	write(t, db, `update inbox set due_at = now() + interval '359 minutes' where message_id = 'waits by a rule'`)
	p := processor(db, answer(nil))
	p.Policy.Lease, p.Policy.BackoffBase, p.Policy.BackoffCap = 6*time.Second, time.Millisecond, time.Millisecond
	start(t, p)
	await.Row(t, db, `select bool_and(status = 'done') from inbox where message_id <> 'waits by a rule'`)
	if r := stored(t, db, "waits by a rule"); r.Status != "pending" {
		t.Errorf("a message that waits by a rule is %q, want pending", r.Status)
	}
}

func TestProcessor_cutsAWaitThatIsTooLong(t *testing.T) {
	t.Parallel()
	db := testdb.Reused(t)
	put(t, db, "m", "m")
	p := processor(db, answer(&inbox.WaitError{AtLeast: 24 * inbox.LongestWait, Err: context.DeadlineExceeded}))
	p.Policy.BackoffBase, p.Policy.BackoffCap = time.Millisecond, time.Millisecond
	start(t, p)
	await.Row(t, db, `
select waits = 1
       and due_at between now() + interval '350 minutes' and now() + interval '361 minutes'
  from inbox`)
}
