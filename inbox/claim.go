package inbox

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

// Claim takes due messages for a holder: waiting ones whose time has come, and
// running ones whose lease has ended. For one ordering key only the oldest open
// message is taken, and none while another one runs; a parked message is open.
// The unique index on running rows refuses whatever this query might miss.
//
// A message whose holder went silent waits a little longer than its lease, a
// part of the backoff that its id and fence draw: should one message end every
// process that takes it, those that died beside it are soon taken without it.
//
// What this holder still works on is left out: should its lease have lapsed, the
// next heartbeat revives it, unless another holder was faster.
//
// The offset keeps the subquery a probe of one key. As a join it could be planned
// to read all open messages for each, which stalls every claim behind a backlog.
//
// now() is a moment earlier than clock_timestamp() and, unlike it, can be a
// bound of the index.
const claim = `
with due as (
  select i.id
    from inbox i
   where i.receiver = $1
     and i.status in ('pending', 'running')
     and i.due_at <= now()
     and i.id <> all($5::bigint[])
     and (i.status = 'pending'
          or i.due_at + (hashint8(i.id # i.fence) & 1023) / 1024.0
                      * least($7::interval, $6::interval * power(2, least(i.attempts - 1, 30))) <= now())
     and not exists (
           select
             from inbox other
            where other.receiver = i.receiver
              and other.ordering_key = i.ordering_key
              and other.status <> 'done'
              and other.id <> i.id
              and (other.status = 'running' or (other.id < i.id and i.status = 'pending'))
           offset 0)
   order by i.due_at
   limit $2
     for update skip locked
)
update inbox i
   set status   = 'running',
       fence    = i.fence + 1,
       attempts = i.attempts + 1,
       holder   = $3,
       due_at   = clock_timestamp() + $4::interval
  from due
 where i.id = due.id
returning i.id,
          i.fence,
          i.attempts,
          i.waits,
          i.message_id,
          i.type,
          i.ordering_key,
          i.payload,
          i.metadata`

// claimUpTo commits the claim before anybody acts on it. The attempt is counted
// here, so that a holder that dies has been counted.
//
// If we die here: the rows are leased to nobody, and are taken again when the
// lease ends.
func (r *run) claimUpTo(ctx context.Context, n int, held []int64) ([]Delivery, error) {
	p := r.Policy
	rows, err := r.DB.Query(ctx, claim, r.Receiver, n, r.Holder, p.Lease, held, p.BackoffBase, p.BackoffCap)
	if err != nil {
		return nil, fmt.Errorf("claim messages of %s: %w", r.Receiver, err)
	}
	deliveries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Delivery, error) {
		var d Delivery
		var metadata []byte
		err := row.Scan(&d.row, &d.fence, &d.Attempt, &d.Waits, &d.ID, &d.Type, &d.OrderingKey, &d.Payload, &metadata)
		if json.Unmarshal(metadata, &d.Metadata) != nil {
			// Not ours, or not strings. The claim has committed for all its rows, so
			// one row's content must not lose the others.
			d.Metadata = nil
		}
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("claim messages of %s: %w", r.Receiver, err)
	}
	return deliveries, nil
}

// Rows are locked in one order, so that two renewals cannot deadlock.
const renew = `
with held as (
  select i.id
    from inbox i
    join unnest($1::bigint[], $2::bigint[]) as mine(id, fence)
      on mine.id = i.id
     and mine.fence = i.fence
   where i.status = 'running'
   order by i.id
     for update of i
)
update inbox i
   set due_at = clock_timestamp() + $3::interval
  from held
 where i.id = held.id
returning i.id`

// renewLeases moves the end of the leases that are still held and returns the
// rows of those. A row that is missing was taken over.
func renewLeases(ctx context.Context, q postgres.Querier, held []Delivery, lease time.Duration) (map[int64]bool, error) {
	ids, fences := make([]int64, len(held)), make([]int64, len(held))
	for i, d := range held {
		ids[i], fences[i] = d.row, d.fence
	}
	rows, err := q.Query(ctx, renew, ids, fences, lease)
	if err != nil {
		return nil, fmt.Errorf("renew %d leases: %w", len(held), err)
	}
	renewed, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("renew %d leases: %w", len(held), err)
	}
	still := make(map[int64]bool, len(renewed))
	for _, id := range renewed {
		still[id] = true
	}
	return still, nil
}
