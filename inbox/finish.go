package inbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
)

// endDelivery ends one delivery, endDeliveries several of one group commit, which are refused
// together and then retried individually. It writes the holder's fence where a constraint
// compares it with the row's: counting updated rows instead would let the rest of a stale
// holder's batch through. Of two holders of one row the greater fence is written, and the
// other holder is refused. So is one whose row retention has deleted: a row is inserted
// that the constraint refuses. After a failover that lost rows their numbers are given again,
// under the same fences, so the message's id is compared too.
//
// Rows are locked first, by number, as other statements lock them (see lockOldest). The
// rows to lock and to end are arrays: for a join the planner may read the whole table.
//
// If we die here: all of them have ended, each with its effects, or none has. Test:
// TestDeliveries_endTogether.
const (
	endDelivery   = `with ending (id, fence, message_id) as (values ($1::bigint, $2::bigint, $3::text))` + endAll
	endDeliveries = `with ending (id, fence, message_id) as (select * from unnest($1::bigint[], $2::bigint[], $3::text[]))` + endAll

	endAll = `, locked as (
  select id
    from inbox
   where id = any (array(select id from ending))
   order by id
     for no key update
), ended as (
  update inbox
     set status      = 'done',
         done_fence  = (select max(fence) from ending where ending.id = inbox.id),
         finished_at = clock_timestamp(),
         last_error  = null
   where id = any (array(select id from locked))
     and message_id = any (array(select message_id from ending where ending.id = inbox.id))
  returning id, done_fence, message_id
)
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, fence, done_fence)
select '', '', '', '', '', '{}', '', fence, fence + 1
  from ending
 where (id, fence, message_id) not in (select id, done_fence, message_id from ended)`
)

// Commit commits a batch that holds the handler's last effect, together with the end of the
// delivery. If the lease was taken over, or another holder finished the message and
// retention deleted it, the constraint refuses the whole batch, and IsLeaseLost reports it.
func (d *Delivery) Commit(ctx context.Context, db groupcommit.DB, b *pgx.Batch) error {
	d.queueEnd(b)
	err := db.Commit(ctx, b)
	d.endedByHandler = err == nil
	return err
}

func (d *Delivery) queueEnd(b *pgx.Batch) { b.Queue(endDelivery, d.row, d.fence, d.ID) }

// Done ends the delivery in the transaction that holds the handler's last effect, and is its
// last statement. It refuses as Commit does, and the handler rolls back. When Done has
// returned nil, the commit of the transaction alone decides: if it is rolled back, the
// message is handled again after its lease has expired, though the handler returns nil.
func (d *Delivery) Done(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, endDelivery, d.row, d.fence, d.ID)
	d.endedByHandler = err == nil
	return err
}

// IsLeaseLost reports whether a transaction was refused because another holder has claimed or
// finished the delivery. The handler stops: the other holder continues.
func IsLeaseLost(err error) bool { return groupcommit.Constraint(err) == "inbox_done_by_holder" }

// endClaim ends a claim without finishing the message. Only the holder of the newest fence has
// an effect. No other transaction changes the message meanwhile, so the holder knows what to
// write. COALESCE keeps the planner from using any index except the primary key: the indexes
// of open messages hold the number too and would be read whole.
const endClaim = `
update inbox i
   set status        = case when $3 or $8 and waiting_since < clock_timestamp() - $10::interval then 'dead' else 'pending' end,
       attempts      = $4,
       deaths        = $5,
       waits         = $6,
       waiting_since = case when $8 then coalesce(waiting_since, clock_timestamp()) when not $9 then waiting_since end,
       due_at        = clock_timestamp() + $7::interval,
       last_error    = coalesce($11, last_error),
       history       = ` + history + ` 'error', left($11, 200))
 where id = $1
   and fence = $2
   and coalesce(message_id = $12, false)
   and coalesce(status = 'running', false)`

// history is the column of a message i with one more entry, for the claim that ends, whose
// last members follow.
const history = `case when jsonb_array_length(i.history) >= 16 then i.history - 8 else coalesce(i.history, '[]') end ||
                   jsonb_build_object('fence', i.fence, 'holder', i.holder, 'claimed_at', i.claimed_at, 'at', clock_timestamp(),`

// endClaimPause is the place of the pause among the arguments of endClaim.
const endClaimPause = 6

// ending is how a claim leaves a message that it did not finish.
type ending struct {
	dead                    bool
	attempts, deaths, waits int
	pause                   time.Duration
	waiting, noDeadline     bool          // for a service that does not answer, or that does
	giveUpAfter             time.Duration // while waiting
	reason                  error         // nil keeps the last one
}

func (e ending) of(d *Delivery) func(*pgx.Batch) {
	var reason *string
	if e.reason != nil {
		text := storable(e.reason.Error())
		reason = &text
	}
	return func(b *pgx.Batch) {
		b.Queue(endClaim, d.row, d.fence, e.dead, e.attempts, e.deaths, e.waits, e.pause, e.waiting, e.noDeadline, e.giveUpAfter, reason, d.ID)
	}
}

// wake makes a message that waits due if a message of its key was received after the claim
// ($3): that may be what it waits for. A page that brings one locks this row first: either
// it finds the wait and ends it, or this statement finds the message, since it sees what
// was committed while endClaim was waiting for the lock. What came before the claim, the
// handler has seen. The key is compared as a range, as in oldestOpen.
const wake = `
update inbox i
   set due_at = clock_timestamp()
 where i.id = $1
   and i.fence = $2
   and coalesce(i.status = 'pending', false)
   and exists (
         select from inbox newer
          where newer.receiver = i.receiver and newer.ordering_key >= i.ordering_key and newer.ordering_key <= i.ordering_key
            and newer.status in ('pending', 'running') and newer.id <> i.id and newer.received_at > $3
          order by newer.ordering_key, newer.id
         offset 0)`

// completeType ends the younger messages of a key that WaitError.CompletesType names. They have
// no holder, since the one that waits is open, and whose row is locked first, as lockOldest does.
// The key is compared as a range, as in oldestOpen.
//
// If we die here: they are done together with the wait, or stay behind the message, which is
// claimed again.
// Test: TestWait_completesMessagesOfItsType.
const completeType = `
update inbox
   set status      = 'done',
       done_fence  = fence,
       due_at      = coalesce(due_at, clock_timestamp()),
       finished_at = clock_timestamp()
 where id = any (array(
         select younger.id
           from (select receiver, ordering_key
                   from inbox
                  where id = $1
                    and fence = $2
                    and coalesce(message_id = $5, false)
                    and coalesce(status = 'pending', false)) i
          cross join lateral (
                select id
                  from inbox
                 where receiver = i.receiver and ordering_key >= i.ordering_key and ordering_key <= i.ordering_key
                   and status in ('pending', 'running') and id > $1
                   and coalesce(status = 'pending', false)
                   and received_at <= $3
                   and starts_with(type, $4)
                 order by ordering_key, id
                offset 0) younger))`

// Writes are the statements of this package that may share a group commit: the ends of
// claims.
func Writes() []groupcommit.Statement {
	return []groupcommit.Statement{
		{SQL: endDelivery, ManyRows: endDeliveries, Table: "inbox", Key: 1},
		{SQL: endClaim, Table: "inbox", Key: 1},
		{SQL: wake, Table: "inbox", Key: 1},
	}
}
