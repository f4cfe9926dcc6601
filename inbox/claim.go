package inbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// claimDue claims the oldest messages that are first and due, at most $3, for the holder $2: it raises fence and attempts.
// The last column says whether a message waits behind. It leaves out
//
//	partitions $5                   have 7/8 of all slots, are paused, or filled the claims before: see grant.except
//	rows that are locked            a whole read of tick finds them, within about two seconds
//	due times older than $4         none is left there (caughtUpAt) but what was committed late, which a whole read finds;
//	                                without this bound, the index entries of old claims are read
//
// It registers the holder for the lease $6 if less than 0.7 of a lease is left, so an idle holder writes nothing.
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
     and partition_key not in (select unnest($5::text[]))
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
       ` + oldestBehind + ` is not null
  from claimed k`

// commitClaim commits a batch that ends with a claim for what is granted, and starts what it claimed.
//
// If we die here: what was claimed is taken over. Test: TestModel.
func (p *Processor) commitClaim(ctx context.Context, b *pgx.Batch, g grant) (claimed []*Delivery, mayBeMore bool, err error) {
	if g.slots > 0 {
		window := time.Since(*cmp.Or(p.caughtUpAt.Load(), &time.Time{})) //nolint:forbidigo // it decides only what is read
		b.Queue(claimDue, p.Receiver, p.Holder, g.slots, window, g.except, p.Policy.Lease).Query(func(rows pgx.Rows) (err error) {
			claimed, err = pgx.CollectRows(rows, p.scan)
			return err
		})
	}
	if err = p.DB.Commit(ctx, b); err != nil {
		claimed, err = nil, fmt.Errorf("commit a claim for %s: %w", p.Receiver, err)
	}
	if mayBeMore = len(claimed) == g.slots; mayBeMore { // also where it had no slot
		p.slots.missed.Add(1) // above the count of their claim, so the end of each wakes the loop
	}
	p.slots.start(ctx, g, claimed, p.process)
	return claimed, mayBeMore, err
}

func (p *Processor) scan(row pgx.CollectableRow) (*Delivery, error) {
	d := &Delivery{receiver: p.Receiver, holder: p.Holder}
	var metadata []byte
	err := row.Scan(&d.row, &d.fence, &d.Attempt, &d.Deaths, &d.Waits, &d.ID, &d.Type, &d.OrderingKey, &d.Partition, &d.Payload, &metadata, &d.ClaimedAt, &d.behind)
	_ = json.Unmarshal(metadata, &d.Metadata) // another program's may not be strings
	return d, err
}
