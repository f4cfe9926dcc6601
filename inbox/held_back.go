package inbox

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// claimHeldBack claims the oldest messages that are held back of each partition ($6) for
// which there is room ($8). It reads each message that waits behind another one of its
// key, as claimDue does. Those up to $7 are known to be gone: while a transaction
// holds an old snapshot, each claim would read their dead index entries.
const claimHeldBack = `
with found as (
  select h.id,
         true as fits
    from unnest($6::text[], $7::bigint[], $8::int[]) as p (partition_key, gone, room)
   cross join lateral (
           select i.id
             from inbox i
            where i.receiver = $1
              and i.partition_key = p.partition_key
              and i.status = 'pending'
              and i.due_at is null
              and i.id > p.gone
              and ` + isFirstOfKey + `
            order by i.receiver, i.partition_key, i.id
            limit p.room
              for update skip locked) h
   limit $2` + claimFound

// heldBackPartitions returns the partitions of which messages are held back, by any
// process: one probe for each.
const heldBackPartitions = `
with recursive held (partition_key) as (
  (select partition_key
     from inbox
    where receiver = $1
      and status = 'pending'
      and due_at is null
    order by receiver, partition_key
    limit 1)
   union all
  select (select i.partition_key
            from inbox i
           where i.receiver = $1
             and i.status = 'pending'
             and i.due_at is null
             and i.partition_key > held.partition_key
           order by i.receiver, i.partition_key
           limit 1)
    from held
   where held.partition_key is not null
)
select partition_key
  from held
 where partition_key is not null`

// claimHeldBack claims messages that are held back, as far as their partitions have room,
// until there are n messages.
func (r *run) claimHeldBack(ctx context.Context, messages *[]claimed, n int) error {
	n -= len(*messages)
	partitions, gone, rooms := r.heldBackWithRoom(n, *messages)
	if len(partitions) == 0 {
		return nil
	}
	var found []claimed
	b := &pgx.Batch{}
	r.queueClaim(b, &found, claimHeldBack, n, r.Policy.Parked == Pass, partitions, gone, rooms)
	if err := r.DB.Commit(ctx, b); err != nil {
		return fmt.Errorf("claim messages of %s that are held back: %w", r.Receiver, err)
	}
	*messages = append(*messages, found...)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range found {
		r.heldBack[c.Partition] = max(r.heldBack[c.Partition], c.row)
	}
	return nil
}

// heldBackWithRoom returns at most n partitions that have messages held back and room for
// some of them.
func (r *run) heldBackWithRoom(n int, already []claimed) (partitions []string, gone []int64, rooms []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n <= 0 || len(r.heldBack) == 0 {
		return nil, nil, nil
	}
	known, have, others := r.slots.room(n+len(already), already)
	room := make(map[string]int, len(known))
	for i, partition := range known {
		room[partition] = have[i]
	}
	for partition, above := range r.heldBack {
		free, has := room[partition]
		if !has {
			free = others
		}
		if free > 0 && len(partitions) < n {
			partitions, gone, rooms = append(partitions, partition), append(gone, above), append(rooms, free)
		}
	}
	return partitions, gone, rooms
}

// holdBack notes that a message of a partition is held back; r.mu is held.
func (r *run) holdBack(partition string) {
	if _, known := r.heldBack[partition]; !known {
		r.heldBack[partition] = 0
	}
}

func (r *run) holdsBack() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.heldBack) > 0
}
