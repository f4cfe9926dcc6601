package inbox

import (
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
)

// done writes the holder's fence where a check compares it with the row's: a
// count of updated rows would let the rest of a zombie's batch through. A row that
// was swept has no check that could refuse, so one is inserted that has.
const done = `
with ended as (
  update inbox
     set status      = 'done',
         done_fence  = $2,
         finished_at = clock_timestamp(),
         last_error  = null
   where id = $1
  returning id
)
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, fence, done_fence)
select '', '', '', '', '', '{}', '', $2, $2::bigint + 1
 where not exists (
         select
           from ended)`

// doneHead and doneTail are the text of done for several holders, who share a commit. They are refused
// together, and then end each for itself.
//
// Of two who say that they hold one row, at most one does: the greater fence is
// written, and whose fence was not written is refused, like him whose row is gone.
//
// Rows are locked first, by number, as others lock them (see receive). What is locked
// or ended is an array: a join was planned, while the inbox was empty, to read all of
// it later.
//
// If we die here: all of them have ended, each with its effects, or none has. Test:
// TestDeliveriesThatEndTogetherOfACutConnection.
const (
	doneHead = `with ending (id, fence) as (
  values `

	doneTail = `
), locked as (
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
  returning id, done_fence
)
insert into inbox
       (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, fence, done_fence)
select '', '', '', '', '', '{}', '', fence, fence + 1
  from ending
 where (id, fence) not in (select id, done_fence from ended)`
)

// Done queues the end of a delivery into the batch that holds its last effect.
// If the lease was taken over meanwhile, or the message is done by another one and
// swept since, the check refuses the whole batch, and IsLost tells so.
func Done(b *pgx.Batch, d Delivery) { b.Queue(done, d.row, d.fence) }

// IsLost tells whether a commit was refused because somebody else holds, or has
// finished, the delivery. The loser stops: the other one goes on.
func IsLost(err error) bool { return postgres.Constraint(err) == "inbox_done_by_holder" }

// The statements below end a claim without finishing the message. Each is for
// the holder of the newest fence alone; for anybody else it changes nothing, and
// nothing else rides in its batch. Coalesced, the status leads to no index: those of
// open messages hold the number too, and would be read whole.

// An answer shows that the deaths before it were not the message's own doing.
const fail = `
update inbox
   set status     = case when attempts - deaths >= $3 then 'dead' else 'pending' end,
       attempts   = attempts - deaths,
       deaths     = 0,
       due_at     = clock_timestamp()
                  + random() * least($5::interval, $4::interval * power(2, least(attempts - deaths - 1, $7))),
       last_error = $6
 where id = $1
   and fence = $2
   and coalesce(status = 'running', false)`

func failed(b *pgx.Batch, d Delivery, p Policy, reason string) {
	b.Queue(fail, d.row, d.fence, p.MaxAttempts, p.BackoffBase, p.BackoffCap, storable(reason), p.doublings())
}

// A wait shows that the handler came through, so earlier errors are past. A patient
// one shows that the outside can be reached, and one that tried nothing shows
// nothing about it.
const wait = `
update inbox
   set status        = case when not $8 and not $10 and clock_timestamp() - coalesce(waiting_since, clock_timestamp()) > $6::interval
                            then 'dead' else 'pending' end,
       attempts      = 0,
       deaths        = 0,
       waits         = waits + 1,
       waiting_since = case
                         when $10    then waiting_since
                         when not $8 then coalesce(waiting_since, clock_timestamp())
                       end,
       due_at        = clock_timestamp()
                     + greatest($3::interval, random() * least($5::interval, $4::interval * power(2, least(waits, $9)))),
       last_error    = $7
 where id = $1
   and fence = $2
   and coalesce(status = 'running', false)`

// A message of the key that was received after the claim may be what this one
// waits for. Whoever receives a message locks this row first: either it finds the
// wait and ends it, or we find the message, since a statement of its own sees
// what was committed while the one before waited for the lock. What came before
// the claim, the handler has looked at. The key is compared twice, as in receive.
const wake = `
update inbox i
   set due_at = clock_timestamp()
 where i.id = $1
   and i.fence = $2
   and coalesce(i.status = 'pending', false)
   and exists (
         select
           from inbox newer
          where newer.receiver = i.receiver
            and newer.ordering_key >= i.ordering_key
            and newer.ordering_key <= i.ordering_key
            and newer.status in ('pending', 'running')
            and newer.id <> i.id
            and newer.received_at > $3
          order by newer.ordering_key, newer.id
         offset 0)`

func waits(b *pgx.Batch, d Delivery, p Policy, w WaitError, reason string) {
	b.Queue(wait, d.row, d.fence, min(w.AtLeast, p.longest()), p.BackoffBase, p.BackoffCap, p.GiveUpAfter, storable(reason), w.Patient, p.doublings(), w.Untried)
	b.Queue(wake, d.row, d.fence, d.claimed)
}

const park = `
update inbox
   set status     = 'dead',
       last_error = $3
 where id = $1
   and fence = $2
   and coalesce(status = 'running', false)`

func parked(b *pgx.Batch, d Delivery, reason string) { b.Queue(park, d.row, d.fence, storable(reason)) }

const release = `
update inbox
   set status   = 'pending',
       attempts = attempts - deaths - 1,
       deaths   = 0,
       due_at   = clock_timestamp()
 where id = $1
   and fence = $2
   and coalesce(status = 'running', false)`

func released(b *pgx.Batch, d Delivery) { b.Queue(release, d.row, d.fence) }

const longestReason = 2000 // bytes

// storable makes text of an error that may quote anything: PostgreSQL refuses a
// NUL and invalid UTF-8, and then the end of the claim would be lost with it.
func storable(reason string) string {
	if len(reason) > longestReason {
		reason = reason[:longestReason]
	}
	return asText(reason)
}

// Writes are the statements of this package that may share a commit: the ends of claims.
func Writes() []groupcommit.Statement {
	end := func(sql string, rows func(int) string) groupcommit.Statement {
		return groupcommit.Statement{SQL: sql, Rows: rows, Table: "inbox", Row: groupcommit.ByNumber}
	}
	return []groupcommit.Statement{
		end(done, groupcommit.Values(doneHead, doneTail, "%s::bigint", "%s::bigint")),
		end(fail, nil), end(wait, nil), end(wake, nil), end(park, nil), end(release, nil),
	}
}
