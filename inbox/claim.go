package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// readNext reads how long it is to the next due time, at most $2.
const readNext = `
-- inbox.readNext
select least((select due_at from inbox where receiver = $1 and status = 'pending' and first and due_at > now() order by due_at limit 1) - now(), $2::interval)`

// claimDue claims the oldest messages that are first and due, at most $3, for the holder $2, none
// of the partitions $5. It registers the holder for the lease $6 if less than 0.7 of a lease is left,
// so an idle holder writes nothing. $4 bounds how old a due time may be: all that was due before was claimed,
// and its index entries may be dead tuples that an old snapshot keeps. What was committed late or locked
// is found by the full read of tick, each second. The last column says whether a message waits behind.
const claimDue = `
-- inbox.claimDue
with due as (
  select id
    from inbox
   where receiver = $1
     and status = 'pending'
     and first
     and due_at <= now()
     and due_at >= now() - $4::interval
     and partition_key <> all ($5::text[])
   order by due_at, id
   limit $3
     for update skip locked
), claimed as (
  update inbox
     set status     = 'running',
         fence      = fence + 1,
         attempts   = attempts + 1,
         holder     = $2,
         nudged     = false,
         claimed_at = clock_timestamp()
   where id = any (array(select id from due))
  returning *
), registered as (
  insert into inbox_holders
         (receiver, holder, alive_until)
  select $1, $2, clock_timestamp() + $6::interval
   where exists (select from claimed)
     and not exists (
         select from inbox_holders where receiver = $1 and holder = $2 and alive_until > clock_timestamp() + $6::interval * 0.7)
  on conflict (receiver, holder) do update
     set alive_until = excluded.alive_until
)
select id, fence, attempts, deaths, waits, message_id, type, ordering_key, partition_key, payload, metadata, claimed_at,
       (select b.id
          from inbox b
         where b.receiver = claimed.receiver
           and b.ordering_key >= claimed.ordering_key
           and b.ordering_key <= claimed.ordering_key
           and b.status = 'pending'
           and not b.first
         order by b.ordering_key, b.id
         limit 1) is not null
  from claimed`

// A processor has Concurrency slots. Each is free, reserved by a claim in flight, or has a handler
// (running). reserve takes free slots, start turns them into handlers or frees them, and freeSlot frees
// that of a handler. Two callers claim: the loop (tick), and each page that is received, in its own
// transaction (storePage). Each event that may leave a due message unclaimed raises p.unclaimed. A handler
// wakes the loop if the count has changed since its claim. A lost wake costs a second.

// reservation is what a claim may take: 7/8 of the free slots, and nothing of a partition that holds 7/8 of all.
type reservation struct {
	slots     int
	spare     int           // slots that are free beside these
	full      []string      // partitions that have their share, or are paused
	since     time.Duration // the claim reads no older due times: all that was due before is claimed
	unclaimed int64         // of the processor
}

func share(slots int) int { return max(1, 7*slots/8) }

// reserve reserves free slots for a claim: for the loop where most is 0, or at most so many for a page. It leaves
// out the partitions crowd too. While a partition is left out, a page gets none: its claim would read all that the
// partition has due.
func (p *Processor) reserve(most int, crowd []string) reservation {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, has := reservation{full: append(append([]string{}, p.pausedIn...), crowd...)}, map[string]int{} // never null, which would claim nothing
	r.since, r.unclaimed = time.Since(p.caughtUpAt), p.unclaimed.Load()                                //nolint:forbidigo // it decides only what is read
	for d := range p.running {
		if has[d.Partition]++; d.Partition != "" && has[d.Partition] == share(p.Concurrency) {
			r.full = append(r.full, d.Partition)
		}
	}
	free := p.Concurrency - len(p.running) - p.reserved
	if p.reserved > 0 {
		free-- // the claim in flight may take messages of one partition only: a slot stays for others
	}
	if free <= 0 || len(r.full) > 0 {
		p.unclaimed.Add(1)
	}
	if !p.open || p.paused || free <= 0 || most > 0 && len(r.full) > 0 {
		return r
	}
	if r.slots = share(free); most > 0 {
		r.slots = min(r.slots, most)
	}
	r.spare = free - r.slots
	p.reserved += r.slots
	p.active.Add(1)
	return r
}

// claim commits a batch that ends with a claim: of the loop where most is 0, or of at most so many
// messages for a page. It leaves out the partitions crowd, starts what it has claimed, and returns whether more may
// be due.
//
// If we die here: what was claimed is taken over. Test: TestModel.
func (p *Processor) claim(ctx context.Context, b *pgx.Batch, most int, crowd []string) (r reservation, more bool, err error) {
	began := time.Now() //nolint:forbidigo // it decides only what is read
	r = p.reserve(most, crowd)
	var claimed []*Delivery
	if r.slots > 0 {
		b.Queue(claimDue, p.Receiver, p.Holder, r.slots, r.since, r.full, p.Policy.Lease).Query(func(rows pgx.Rows) (err error) {
			claimed, err = pgx.CollectRows(rows, p.scan)
			return err
		})
	}
	if err = p.DB.Commit(ctx, b); err != nil {
		claimed, err = nil, fmt.Errorf("commit a claim for %s: %w", p.Receiver, err)
	}
	if more = len(claimed) == r.slots; more { // also where it had no slot
		p.unclaimed.Add(1) // before one of them ends
	}
	p.start(ctx, claimed, r)
	if most == 0 && more {
		p.crowd = append(p.crowd, column(claimed, func(d *Delivery) string { return d.Partition })...)
		slices.Sort(p.crowd)
		if p.crowd = slices.Compact(p.crowd); len(p.crowd) > crowdMost { // one partition after the other has its turn
			p.crowd = nil
		}
	}
	switch {
	case more:
	case most > 0 && r.unclaimed != p.unclaimed.Load():
		p.wake() // the slots that it did not use are free again
	case most == 0 && len(r.full) == 0 && err == nil:
		p.change(func() { p.caughtUpAt = began.Add(-claimOverlap) })
	}
	return r, more, err
}

func (p *Processor) scan(row pgx.CollectableRow) (*Delivery, error) {
	d := &Delivery{receiver: p.Receiver}
	var metadata []byte
	err := row.Scan(&d.row, &d.fence, &d.Attempt, &d.Deaths, &d.Waits, &d.ID, &d.Type, &d.OrderingKey, &d.Partition, &d.Payload, &metadata, &d.ClaimedAt, &d.behind)
	_ = json.Unmarshal(metadata, &d.Metadata) // another program's may not be strings
	return d, err
}

// tick is one transaction: it repairs what others left, once a second, or less often where that
// takes long, and claims. It returns when the next message is due; 0 if more may be due now.
func (p *Processor) tick(ctx context.Context) (next time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout())
	defer cancel()
	began, b := time.Now(), &pgx.Batch{}        //nolint:forbidigo // it decides only what is read
	if began.Sub(p.committedAt) > p.timeout() { // after an outage all holders may be silent: each gets time to register again
		p.patientUntil = began.Add(2 * p.timeout())
	}
	repairs := !began.Before(p.repairsAt)
	if repairs {
		p.queueRepair(b)
	}
	var crowd []string
	all := began.Sub(p.readAllAt) >= pollEvery
	if all { // a commit may have taken longer than claimOverlap
		p.change(func() {
			if p.caughtUpAt.IsZero() && began.After(p.crowdAfter) { // messages were due all the time
				crowd = p.crowd
			}
			p.caughtUpAt = time.Time{}
		})
	}
	b.Queue(readNext, p.Receiver, pollEvery).QueryRow(func(row pgx.Row) error { return row.Scan(&next) })
	r, more, err := p.claim(ctx, b, 0, crowd)
	ended := time.Now() //nolint:forbidigo // as above
	if all && !more {
		p.readAllAt, p.crowd = ended, nil
	}
	if len(crowd) > 0 && r.slots > 0 {
		p.crowdAfter = ended.Add(crowdRest * ended.Sub(began))
	}
	if repairs { // or it has failed to: the next ticks claim, whatever the repair has met
		p.repairsAt = ended.Add(max(repairEvery, repairShare*ended.Sub(began)))
	}
	if p.committedAt = ended; err != nil || ended.Sub(began) > p.timeout() {
		p.committedAt = time.Time{}
	}
	switch {
	case err != nil:
		return 0, err
	case len(p.stranded) > 0:
		p.promoteStranded(ctx)
		return 0, nil
	case r.slots > 0 && len(crowd) > 0, more && r.spare > 0:
		return 0, nil
	}
	return next, nil
}
