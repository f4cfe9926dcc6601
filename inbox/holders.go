package inbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// A processor that holds messages is registered, by its claims and by each beat, until a lease later by the database's
// clock. If its process dies, the registration ends: forget deletes it, takeOver makes the messages due in the same
// transaction, and the next claim raises their fences. If the process lives after all, its next beat finds them lost.

// history is the column of a message i with one more entry, for the claim that ends.
const history = `case when jsonb_array_length(i.history) >= 16 then i.history - 8 else coalesce(i.history, '[]') end ||
                   jsonb_build_object('fence', i.fence, 'holder', i.holder, 'claimed_at', i.claimed_at, 'at', clock_timestamp(),`

const deathsPerAttempt = 4 // so many deaths count as much as an attempt

// beat returns the places of those of its messages $4, claimed under the fences $5, that the holder has lost; a done
// one is not. It is sent alone: a sign of life waits for no standby, and for no lock but that of a claim that registers.
const (
	beat = `
-- inbox.beat
with registered as (
  insert into inbox_holders
         (receiver, holder, alive_until)
  select $1, $2, clock_timestamp() + $3::interval
   where set_config('synchronous_commit', 'off', true) = 'off'
  on conflict (receiver, holder) do update
     set alive_until = excluded.alive_until
)
select place
  from unnest($4::bigint[], $5::bigint[]) with ordinality as held (id, fence, place)
 where (select i.id from inbox i where i.id = held.id and i.fence = held.fence and i.holder = $2 and i.status in ('running', 'done')) is null`

	// forget removes holders that are silent, and those whose alive_until is too far away, since they
	// registered while the clock of the database was ahead. One that lives registers again. A row
	// that is locked is that of a holder whose claim or beat is being committed.
	forget = `
-- inbox.forget
delete from inbox_holders
 where receiver = $1
   and holder = any (array(
         select holder
           from inbox_holders
          where receiver = $1
            and (alive_until < now() or alive_until > now() + greatest(2 * $2::interval, interval '10 minutes'))
            for update skip locked))`

	// takeOver makes messages due that run without a handler, after a random backoff ($4, $5): what kills its process soon
	// runs alone. $2 deaths make a dead letter, $3 is Pass.
	//
	//	the claim is of   it is taken over
	//	another holder    if that is not registered, and claimed before this transaction: a later claim registers it
	//	this holder, $6   if it is not in $7, its handlers', no claim is in flight, $8, and it is older than $9: the outcome
	//	                  of its claim or end is unknown
	takeOver = `
-- inbox.takeOver
update inbox i
   set status     = case when deaths + 1 >= $2 then 'dead' else 'pending' end,
       first      = deaths + 1 < $2 or not $3,
       deaths     = deaths + 1,
       fence      = fence + (deaths + 1 >= $2)::int, -- a dead letter has no holder that could end it
       due_at     = clock_timestamp() + random() * least($5::interval, $4::interval * power(2, least(deaths, 20))),
       last_error = case when deaths + 1 >= $2 then 'its holders died or went silent' else last_error end,
       history    = ` + history + ` 'lease_ended_at', clock_timestamp())
 where id = any (array(
         select id
           from inbox
          where receiver = $1
            and status = 'running'
            and (holder <> $6 and holder not in (select holder from inbox_holders where receiver = $1)
                              and (claimed_at between now() and clock_timestamp()) is not true
                 or holder = $6 and id <> all ($7::bigint[]) and not $8 and claimed_at not between clock_timestamp() - $9::interval and clock_timestamp())
          order by holder
            for update skip locked))`
)

// timeout is how long a tick or a beat may take, also where the lease is shorter.
func (p *Processor) timeout() time.Duration { return max(p.Policy.Lease, 3*time.Second) }

// queueTakeOver queues the takeover, unless there was an outage lately.
func (p *Processor) queueTakeOver(b *pgx.Batch) {
	if time.Now().Before(p.patientUntil) { //nolint:forbidigo // it decides only when others are taken over
		return
	}
	q := p.Policy
	held, claims := p.slots.held()
	b.Queue(forget, p.Receiver, q.Lease)
	b.Queue(takeOver, p.Receiver, deathsPerAttempt*q.MaxAttempts, q.DeadLetters == Pass,
		q.BackoffBase, q.BackoffCap, p.Holder, column(held, rowOf), claims, 2*p.timeout())
}

// beat registers the holder while it holds messages and Run goes on, and ends the contexts of handlers whose messages are lost.
//
// If we die here: other processors take over. Test: TestTakeover.
func (p *Processor) beat(ctx context.Context) {
	held, _ := p.slots.held()
	if len(held) == 0 || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout())
	defer cancel()
	fences := column(held, func(d *Delivery) int64 { return d.fence })
	rows, _ := p.DB.Query(ctx, beat, p.Receiver, p.Holder, p.Policy.Lease, column(held, rowOf), fences) // they have the error too
	lost, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		p.Log.WarnContext(ctx, "heartbeat failed", "receiver", p.Receiver, "error", err)
	}
	for _, place := range lost {
		held[place-1].cancel(errLost)
	}
}

func rowOf(d *Delivery) int64 { return d.row }
