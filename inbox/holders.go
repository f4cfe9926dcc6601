package inbox

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A holder is registered by the claim and by each beat, while it holds messages. beat returns
// the places of those of its messages $4, claimed under the fences $5, that it does not hold any more.
const (
	beat = `
-- inbox.beat
with registered as (
  insert into inbox_holders
         (receiver, holder, alive_until)
  values ($1, $2, clock_timestamp() + $3::interval)
  on conflict (receiver, holder) do update
     set alive_until = excluded.alive_until
)
select place
  from unnest($4::bigint[], $5::bigint[]) with ordinality as held (id, fence, place)
 where (select i.id from inbox i where i.id = held.id and i.fence = held.fence and i.status in ('running', 'done')) is null`

	// forget removes holders that are silent, and those that are registered for too long: they
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

	// takeOver makes the messages of holders that are gone due after a random part of a backoff
	// that grows with the deaths in a row, so that a message which kills its process soon runs
	// without those that ran beside it. It also takes back messages that this holder $6 has claimed
	// and does not handle (they are not in $7): the claim had an unknown outcome, or its end could
	// not be stored. A message that was claimed less than $8 ago may be about to start.
	takeOver = `
-- inbox.takeOver
update inbox i
   set status     = case when deaths + 1 >= $2 then 'dead' else 'pending' end,
       first      = deaths + 1 < $2 or not $3,
       deaths     = deaths + 1,
       fence      = fence + (deaths + 1 >= $2)::int, -- a dead letter has no holder that could end it
       due_at     = clock_timestamp() + random() * least($5::interval, $4::interval * power(2, least(deaths, 30))),
       last_error = case when deaths + 1 >= $2 then 'its holders died or went silent' else last_error end,
       history    = ` + history + ` 'lease_ended_at', clock_timestamp())
 where id = any (array(
         select id
           from inbox
          where receiver = $1
            and status = 'running'
            and (holder <> $6 and holder not in (select holder from inbox_holders where receiver = $1)
                 or holder = $6 and id <> all ($7::bigint[]) and claimed_at not between clock_timestamp() - $8::interval and clock_timestamp())
          order by holder
            for update skip locked))`

	// correctDueTimes makes due what was written while the clock of the database was ahead: no
	// pause is longer than a backoff, or than LongestWait after a wait.
	correctDueTimes = `
-- inbox.correctDueTimes
update inbox
   set due_at = clock_timestamp()
 where id = any (array(
         select id
           from inbox
          where receiver = $1
            and status = 'pending'
            and first
            and due_at > now() + $2::interval
            and (waits = 0 or due_at > now() + $3::interval)
          order by due_at
          limit 1000
            for update skip locked))`

	// setLockTimeout ends with the transaction.
	setLockTimeout = `
-- inbox.setLockTimeout
select set_config('lock_timeout', '1ms', true)`
)

const (
	deathsPerAttempt = 4 // so many deaths count as much as an attempt

	repairEvery = time.Second
	repairShare = 20 // of the time, at most one part is for repairs
	promoteTime = 50 * time.Millisecond
)

// timeout is how long a tick or a beat may take, also where the lease is shorter.
func (p *Processor) timeout() time.Duration { return max(p.Policy.Lease, 3*time.Second) }

// queueRepair queues what mends the rows that others left: messages of silent holders, claims and
// ends with an unknown outcome, and due times of a wrong clock. It reads a part of the keys,
// behind that of the repair before, for those without a first message.
func (p *Processor) queueRepair(b *pgx.Batch) {
	q := p.Policy
	if time.Now().After(p.patientUntil) { //nolint:forbidigo // it decides only when others are taken over
		b.Queue(forget, p.Receiver, q.Lease)
		b.Queue(takeOver, p.Receiver, deathsPerAttempt*q.MaxAttempts, q.DeadLetters == Pass,
			q.BackoffBase, q.BackoffCap, p.Holder, column(p.held(), rowOf), 2*p.timeout())
	}
	b.Queue(correctDueTimes, p.Receiver, q.BackoffCap, max(LongestWait, q.BackoffCap))
	if len(p.stranded) == 0 {
		b.Queue(readStranded, p.Receiver, p.repairedKey).QueryRow(func(row pgx.Row) error {
			var keys []string
			err := row.Scan(&keys, &p.repairedKey)
			if len(keys) > 0 {
				p.stranded = append(p.stranded, keys)
			}
			return err
		})
	}
}

// promoteStranded repairs keys, each set of them in a transaction of its own, and in two halves where
// one of them is locked. What is left after a short time waits for the next tick, and a key that
// cannot be repaired is found again.
//
// If we die here: the repair of another processor finds the keys. Test: TestModel.
func (p *Processor) promoteStranded(ctx context.Context) {
	for began := time.Now(); len(p.stranded) > 0 && time.Since(began) < promoteTime; { //nolint:forbidigo // it decides only when claims go on
		keys := p.stranded[0]
		p.stranded = p.stranded[1:]
		b := &pgx.Batch{}
		b.Queue(setLockTimeout)
		b.Queue(promoteMany, slices.Repeat([]string{p.Receiver}, len(keys)), keys)
		if half := len(keys) / 2; p.DB.Commit(ctx, b) != nil && half > 0 {
			p.stranded = append(p.stranded, keys[:half], keys[half:])
		}
	}
}

// beat registers the holder while it holds messages, and ends the context of the handlers whose messages
// are lost.
//
// If we die here: other processors take over. Test: TestTakeover.
func (p *Processor) beat(ctx context.Context) {
	held, lost := p.held(), []int64(nil)
	if len(held) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout())
	defer cancel()
	b := &pgx.Batch{}
	fences := column(held, func(d *Delivery) int64 { return d.fence })
	b.Queue(beat, p.Receiver, p.Holder, p.Policy.Lease, column(held, rowOf), fences).Query(func(rows pgx.Rows) (err error) {
		lost, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	if err := p.DB.Commit(ctx, b); err != nil {
		p.Log.WarnContext(ctx, "heartbeat failed", "receiver", p.Receiver, "error", err)
	}
	for _, place := range lost {
		held[place-1].cancel(errLost)
	}
}

func rowOf(d *Delivery) int64 { return d.row }
