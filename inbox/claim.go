package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// claimDue claims the oldest messages that are first and due, none of the partitions $5, and at
// most $6 of another one. Before $4 lie only the remains of messages that were claimed, which
// an old snapshot may keep.
const claimDue = `
with due as (
  select id, partition_key
    from inbox
   where receiver = $1
     and status = 'pending'
     and first
     and due_at <= now()
     and due_at >= $4
     and partition_key <> all ($5::text[])
   order by due_at, id
   limit $3
     for update skip locked
)
update inbox
   set status     = 'running',
       fence      = fence + 1,
       attempts   = attempts + 1,
       holder     = $2,
       nudged     = false,
       claimed_at = clock_timestamp()
 where id = any (array(
         select id
           from (select *, row_number() over (partition by partition_key order by id) as place from due) d
          where place <= $6
             or partition_key = ''))
returning id, fence, attempts, deaths, waits, message_id, type, ordering_key, partition_key, payload, metadata, claimed_at,
          (select b.id
             from inbox b
            where b.receiver = inbox.receiver
              and b.ordering_key = inbox.ordering_key
              and b.status = 'pending'
              and not b.first
            order by b.id
            limit 1) is not null`

// readNext reads the present and the next due time to come.
const readNext = `
select now(),
       (select min(due_at) from inbox where receiver = $1 and status = 'pending' and first and due_at > now())`

// claim commits a batch that ends with a claim for the free slots, and starts what it has
// claimed. committed is called before. It returns whether more may be due.
//
// If we die here: what was claimed is taken over.
func (p *Processor) claim(ctx context.Context, b *pgx.Batch, committed func()) (more bool, err error) {
	n, share, full, crowded := p.slots.take(p.Concurrency)
	var claimed []*Delivery
	defer func() { p.slots.give(n, claimed); p.start(ctx, claimed) }()
	if n > 0 {
		p.mu.Lock()
		from := p.dueFrom
		p.mu.Unlock()
		b.Queue(claimDue, p.Receiver, p.Holder, n, from, full, share).Query(func(rows pgx.Rows) (err error) {
			claimed, err = pgx.CollectRows(rows, p.scan)
			return err
		})
	}
	if err := p.DB.Commit(ctx, b); err != nil {
		claimed = nil
		return false, fmt.Errorf("commit a claim for %s: %w", p.Receiver, err)
	}
	committed()
	return n == 0 || crowded || len(claimed) >= min(n, share), nil
}

func scanTimes(row pgx.Row) (now, coming time.Time, err error) {
	var next *time.Time
	err = row.Scan(&now, &next)
	coming = now.Add(time.Hour)
	if next != nil {
		coming = *next
	}
	return now, coming, err
}

func (p *Processor) scan(row pgx.CollectableRow) (*Delivery, error) {
	d := &Delivery{receiver: p.Receiver}
	var metadata []byte
	err := row.Scan(&d.row, &d.fence, &d.Attempt, &d.deaths, &d.Waits, &d.ID, &d.Type, &d.OrderingKey, &d.Partition, &d.Payload, &metadata, &d.ClaimedAt, &d.followed)
	_ = json.Unmarshal(metadata, &d.Metadata) // another program's may not be strings
	return d, err
}

// A holder registers itself with each beat. If it is registered anew, others have taken over
// what it held.
const (
	beat = `
insert into inbox_holders as h (receiver, holder, alive_until)
values ($1, $2, clock_timestamp() + $3::interval)
    on conflict (receiver, holder) do update
   set alive_until = excluded.alive_until
returning xmax = '0'`

	forget = `
delete from inbox_holders
 where receiver = $1
   and alive_until < clock_timestamp()`

	// takeOver makes the messages of holders that are gone due after a random part of a backoff
	// that grows with the deaths in a row, so that a message which kills its process soon runs
	// without those that ran beside it.
	takeOver = `
update inbox i
   set status     = case when deaths + 1 >= $2 then 'dead' else 'pending' end,
       first      = deaths + 1 < $2 or not $3,
       deaths     = deaths + 1,
       due_at     = clock_timestamp() + random() * least($5::interval, $4::interval * power(2, least(deaths, 30))),
       last_error = case when deaths + 1 >= $2 then 'its holders died or went silent' else last_error end,
       history    = ` + history + ` 'lease_ended_at', clock_timestamp())
 where id = any (array(
         select id
           from inbox
          where receiver = $1
            and status = 'running'
            and holder not in (select holder from inbox_holders where receiver = $1)
          order by id
            for update skip locked))`

	// recoverOwn makes due what this holder has claimed and does not handle: its commit had an
	// unknown outcome, or its end could not be stored.
	recoverOwn = `
update inbox
   set status = 'pending',
       due_at = clock_timestamp()
 where id = any (array(
         select id
           from inbox
          where receiver = $1
            and status = 'running'
            and holder = $2
            and id <> all ($3::bigint[])
            and claimed_at < clock_timestamp() - $4::interval
          order by id
            for update skip locked))`

	// correctDueTimes makes due what was written while the database's clock was ahead.
	correctDueTimes = `
update inbox
   set due_at = clock_timestamp()
 where id = any (array(
         select id
           from inbox
          where receiver = $1
            and status = 'pending'
            and first
            and due_at > now() + $2::interval
          order by id
          limit 1000
            for update skip locked))`
)

const (
	pollEvery    = 2 * time.Second
	repairEvery  = time.Second
	claimOverlap = 2 * time.Second // a message may be committed later than its due time
	repairShare  = 20              // of the time, at most one part is for repairs
)

// tick claims. Once in a third of the lease, or two while nothing runs, it also says that the holder lives, and, less often
// where that takes long, repairs what others left. It returns when the next message is due; 0 if
// more may be due now.
func (p *Processor) tick(ctx context.Context) (next time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(p.Policy.Lease, minTickTime))
	defer cancel()
	began, b := time.Now(), &pgx.Batch{} //nolint:forbidigo // it decides only what is read
	beaten := func() {}
	if began.Sub(p.beaten) >= p.heartbeat() {
		beaten = p.queueBeat(b)
	}
	repairs := began.Sub(p.repaired) >= max(repairEvery, repairShare*p.repairTook)
	if repairs {
		p.setDueFrom(time.Time{})
		b.Queue(correctDueTimes, p.Receiver, max(LongestWait, p.Policy.BackoffCap))
		b.Queue(promoteAll, p.Receiver)
	}
	now, coming := time.Time{}, time.Time{}
	b.Queue(readNext, p.Receiver).QueryRow(func(row pgx.Row) (err error) {
		now, coming, err = scanTimes(row)
		return err
	})
	more, err := p.claim(ctx, b, beaten)
	p.crowded.Store(more) // pages leave the slots to what is due
	if err != nil {
		return 0, err
	}
	if repairs {
		p.repaired, p.repairTook = time.Now(), time.Since(began) //nolint:forbidigo // as above
	}
	if more {
		return 0, nil
	}
	p.setDueFrom(now.Add(-claimOverlap))
	next = p.heartbeat()
	if len(p.rowsHeld()) == 0 {
		next *= 2 // within the lease
	}
	return max(time.Nanosecond, min(pollEvery, next, coming.Sub(now))), nil
}

// heartbeat is the time between two beats.
func (p *Processor) heartbeat() time.Duration { return p.Policy.Lease / 3 }

// queueBeat says that the holder lives, and takes over from those that do not, unless its own
// beat was late: then the database was away for all of them. beaten is called after the commit.
func (p *Processor) queueBeat(b *pgx.Batch) (beaten func()) {
	began, anew := time.Now(), false //nolint:forbidigo // it decides only who may be taken over
	b.Queue(beat, p.Receiver, p.Holder, p.Policy.Lease).QueryRow(func(row pgx.Row) error { return row.Scan(&anew) })
	if began.Sub(p.beaten) < p.Policy.Lease {
		q := p.Policy
		b.Queue(forget, p.Receiver)
		b.Queue(takeOver, p.Receiver, q.MaxDeaths, q.DeadLetters == Pass, q.BackoffBase, q.BackoffCap)
		b.Queue(recoverOwn, p.Receiver, p.Holder, p.rowsHeld(), 2*q.Lease)
	}
	return func() {
		p.beaten = began
		if anew {
			p.cancelAll(errLost)
		}
	}
}

func (p *Processor) setDueFrom(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dueFrom = t
}
