package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// readNext reads the present, and the next due time to come.
const readNext = `
-- inbox.readNext
select now(),
       (select due_at from inbox where receiver = $1 and status = 'pending' and first and due_at > now() order by due_at limit 1)`

// claimDue claims the oldest messages that are first and due, at most $3, for the holder $2, none
// of the partitions $5, and at most $6 of another one. It registers the holder if its registration
// ends soon, so an idle holder writes nothing. Before $4 lie only the remains of claimed messages,
// which an old snapshot may keep. The last column says whether a message waits behind the claimed
// one.
const claimDue = `
-- inbox.claimDue
with due as (
  select id, partition_key, due_at
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
), claimed as (
  update inbox
     set status     = 'running',
         fence      = fence + 1,
         attempts   = attempts + 1,
         holder     = $2,
         nudged     = false,
         claimed_at = clock_timestamp()
   where id = any (array(
           select id
             from (select id, partition_key, row_number() over (partition by partition_key order by due_at, id) as place from due) d
            where partition_key = '' or place <= $6))
  returning *
), registered as (
  insert into inbox_holders
         (receiver, holder, alive_until)
  select $1, $2, clock_timestamp() + $7::interval
   where exists (select from claimed)
     and not exists (
         select from inbox_holders where receiver = $1 and holder = $2 and alive_until > clock_timestamp() + $7::interval * 0.7)
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

const (
	pollEvery    = time.Second
	claimOverlap = 2 * time.Second // a message may be committed later than its due time
	claimShare   = 4               // a claim that looks past full partitions is followed by a pause of so many times its duration
)

// claim commits a batch that ends with a claim: for all free slots where most is 0, or for at most
// so many messages of a page. It starts what it has claimed, and returns what the claim could take
// and whether more may be due.
//
// If we die here: what was claimed is taken over. Test: TestModel.
func (p *Processor) claim(ctx context.Context, b *pgx.Batch, most int) (r reservation, more bool, err error) {
	r = p.slots.reserve(most)
	var claimed []*Delivery
	if r.slots > 0 {
		b.Queue(claimDue, p.Receiver, p.Holder, r.slots, time.UnixMicro(p.dueFrom.Load()), r.full, r.share, p.Policy.Lease).Query(func(rows pgx.Rows) (err error) {
			claimed, err = pgx.CollectRows(rows, p.scan)
			return err
		})
	}
	began := time.Now() //nolint:forbidigo // it decides only whether the lease is renewed
	if err = p.DB.Commit(ctx, b); err != nil {
		claimed, err = nil, fmt.Errorf("commit a claim for %s: %w", p.Receiver, err)
	}
	p.start(ctx, claimed)
	p.slots.endClaim(r, len(claimed))
	if err != nil {
		return r, false, err
	}
	if len(claimed) > 0 && time.Since(began) > p.Policy.Lease/3 { //nolint:forbidigo // as above
		p.beat(ctx) // others may have taken over meanwhile
	}
	more = len(claimed) >= min(r.slots, r.share)
	p.hungry.Store(more || len(r.full) > 0)
	return r, more, nil
}

func (p *Processor) scan(row pgx.CollectableRow) (*Delivery, error) {
	d := &Delivery{receiver: p.Receiver}
	var metadata []byte
	err := row.Scan(&d.row, &d.fence, &d.Attempt, &d.deaths, &d.Waits, &d.ID, &d.Type, &d.OrderingKey, &d.Partition, &d.Payload, &metadata, &d.ClaimedAt, &d.followed)
	_ = json.Unmarshal(metadata, &d.Metadata) // another program's may not be strings
	return d, err
}

// tick is one transaction: it repairs what others left, once a second, or less often where that
// takes long, and claims. It returns when the next message is due; 0 if more may be due now.
func (p *Processor) tick(ctx context.Context) (next time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout())
	defer cancel()
	began, b, stranded := time.Now(), &pgx.Batch{}, []string(nil) //nolint:forbidigo // it decides only what is read
	repairs := began.Sub(p.repaired) >= max(repairEvery, repairShare*p.repairTook)
	if repairs {
		p.dueFrom.Store(0)
		p.queueRepair(b, p.mayTakeOver(began), &stranded)
	}
	now, coming := time.Time{}, (*time.Time)(nil)
	b.Queue(readNext, p.Receiver).QueryRow(func(row pgx.Row) error { return row.Scan(&now, &coming) })
	reserved, more, err := p.claim(ctx, b, 0)
	p.reached = time.Now() //nolint:forbidigo // as above
	took := p.reached.Sub(began)
	if repairs { // or has failed to: the next ticks claim, whatever the repair has met
		p.repaired, p.repairTook = p.reached, took
	}
	if err != nil || took > p.timeout() { // the others were silent too
		p.reached = time.Time{}
	}
	if err != nil {
		return 0, err
	}
	p.promoteStranded(ctx, stranded)
	p.pause = 0
	if reserved.slots == 0 || len(reserved.full) > 0 {
		p.pause = max(minClaimInterval, min(pollEvery, claimShare*took))
	}
	if more {
		return 0, nil
	}
	if len(reserved.full) == 0 {
		p.dueFrom.Store(now.Add(-claimOverlap).UnixMicro())
	}
	next = pollEvery
	if coming != nil {
		next = min(next, coming.Sub(now))
	}
	return max(time.Nanosecond, next), nil
}
