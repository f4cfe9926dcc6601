package inbox

import (
	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/groupcommit"
	"github.com/payonce/payonce/internal/postgres"
)

// done writes the holder's fence where a constraint compares it with the row's. Counting
// updated rows instead would let the rest of a stale holder's batch through. A row that
// retention has deleted has no constraint that could refuse, so one is inserted that has.
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

// endings is done for several deliveries in one group commit. They are
// refused together, and then retried individually. Of two holders of one row the greater
// fence is written, and the other holder is refused, as is one whose row is gone.
//
// Rows are locked first, by number, as other statements lock them (see lockOldest). The
// rows to lock and to end are arrays: a join was planned, on an empty inbox, to read the
// whole table.
//
// If we die here: all of them have ended, each with its effects, or none has. Test:
// TestDeliveriesThatEndTogetherOfACutConnection.
const endings = `
with ending (id, fence) as (
  select *
    from unnest($1::bigint[], $2::bigint[])
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

// Done queues the end of a delivery into the batch that holds its last effect. If the
// lease was taken over, or another holder finished the message and retention deleted it,
// the constraint refuses the whole batch, and IsLost reports it.
func Done(b *pgx.Batch, d Delivery) { b.Queue(done, d.row, d.fence) }

// IsLost tells whether a commit was refused because another holder has claimed or finished
// the delivery. The handler stops: the other holder continues.
func IsLost(err error) bool { return postgres.Constraint(err) == "inbox_done_by_holder" }

// The statements below end a claim without finishing the message. Each has an effect for
// the holder of the newest fence alone. Coalesced, the status leads to no index: the
// indexes of open messages hold the number too and would be read whole.

// fail counts an attempt. A handler that returned shows that it did not cause the deaths
// before it.
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

// wait forgets earlier errors, since the handler got as far as the service. A patient wait
// ($8) shows that the service can be reached.
const wait = `
update inbox
   set status        = case when not $8 and clock_timestamp() - coalesce(waiting_since, clock_timestamp()) > $6::interval
                            then 'dead' else 'pending' end,
       attempts      = 0,
       deaths        = 0,
       waits         = waits + 1,
       waiting_since = case when not $8 then coalesce(waiting_since, clock_timestamp()) end,
       due_at        = clock_timestamp()
                     + greatest($3::interval, random() * least($5::interval, $4::interval * power(2, least(waits, $9)))),
       last_error    = $7
 where id = $1
   and fence = $2
   and coalesce(status = 'running', false)`

// wake makes a message that waits due if a message of its key was received after the claim
// ($3): that may be what it waits for. A page that brings one locks this row first: either
// it finds the wait and ends it, or this statement finds the message, since it sees what
// was committed while wait was waiting for the lock. What came before the claim, the
// handler has seen. The key is compared as a range, as in lockOldest.
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

const park = `
update inbox
   set status     = 'dead',
       last_error = $3
 where id = $1
   and fence = $2
   and coalesce(status = 'running', false)`

const release = `
update inbox
   set status   = 'pending',
       attempts = attempts - deaths - 1,
       deaths   = 0,
       due_at   = clock_timestamp()
 where id = $1
   and fence = $2
   and coalesce(status = 'running', false)`

// Writes are the statements of this package that may share a group commit: the ends of
// claims.
func Writes() []groupcommit.Statement {
	end := func(sql, many string) groupcommit.Statement {
		return groupcommit.Statement{SQL: sql, Many: many, Table: "inbox", Row: groupcommit.ByNumber}
	}
	return []groupcommit.Statement{
		end(done, endings), end(fail, ""), end(wait, ""), end(wake, ""), end(park, ""), end(release, ""),
	}
}
