package inbox

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A page is stored by short statements in one transaction: lockOpen, store for each
// layer of the page, and wakeKeys.
//
// Plans are kept, and one that was made while the inbox was empty would read all
// messages of a receiver for each key. So the statements are offered walks along
// indexes alone. The settings end with the transaction.
const walkIndexes = `
select set_config(name, 'off', true)
  from unnest(array['enable_bitmapscan', 'enable_hashjoin', 'enable_incremental_sort',
                      'enable_mergejoin', 'enable_seqscan', 'enable_sort']) as s(name)`

// What is stored already is locked before anything is written, and so is the oldest
// open message of each key. Rows are locked by number, as groupcommit locks those that
// end together, so two transactions that meet in several rows do not deadlock. While
// the oldest is locked nobody ends it or makes it wait, and whoever does so later sees
// what this page brought.
//
// The key is compared twice, so that the order is that of inbox_open_by_key and not of
// a sort: one entry of the index is read, however long the queue behind a key is.
const lockOpen = `
select id
  from inbox
 where id = any (array(
         select (select k.id
                   from inbox k
                  where k.receiver = $1
                    and k.message_id = d.message_id)
           from unnest($2::text[]) as d (message_id)
          union all
         select (select open.id
                   from inbox open
                  where open.receiver = $1
                    and open.ordering_key >= d.ordering_key
                    and open.ordering_key <= d.ordering_key
                    and open.status in ('pending', 'running')
                  order by open.ordering_key, open.id
                  limit 1)
           from unnest($3::text[]) as d (ordering_key)))
 order by id
   for no key update`

// A first delivery is inserted; a repeated one is counted; a known id with another
// payload goes to quarantine. Nothing of it raises an error beside a rival that commits
// the same message.
//
// A delivery for which the processor has reserved a slot ($11) is inserted as a claim
// would leave it: running, under the first fence, leased to the holder. The
// condition is that of a claim: nothing of its key is open, nor a dead letter that
// blocks the key ($10). What this look misses, because it is committed at the same
// moment, the unique index on running rows refuses, and the page with it.
const store = `
with incoming as (
  select d.message_id,
         d.ordering_key,
         d.type,
         d.payload,
         d.metadata,
         d.payload_hash,
         d.place,
         d.reserved
         and (select open.id
                from inbox open
               where open.receiver = $1
                 and open.ordering_key >= d.ordering_key
                 and open.ordering_key <= d.ordering_key
                 and open.status in ('pending', 'running')
               order by open.ordering_key, open.id
               limit 1) is null
         and ($10 or (select parked.id
                        from inbox parked
                       where parked.receiver = $1
                         and parked.ordering_key >= d.ordering_key
                         and parked.ordering_key <= d.ordering_key
                         and parked.status = 'dead'
                       order by parked.ordering_key, parked.id
                       limit 1) is null) as starts
    from unnest($2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::bytea[], $11::boolean[])
    with ordinality as d (message_id, ordering_key, type, payload, metadata, payload_hash, reserved, place)
), kept as (
  insert into inbox
         (receiver, message_id, ordering_key, type, payload, metadata, payload_hash,
          status, fence, attempts, holder, due_at)
  select $1, message_id, ordering_key, type, payload, metadata::jsonb, payload_hash,
         case when starts then 'running' else 'pending' end,
         starts::int,
         starts::int,
         case when starts then $8 end,
         clock_timestamp() + case when starts then $9::interval else interval '0' end
    from incoming
   order by place
  on conflict (receiver, message_id) do update
     set duplicates = inbox.duplicates + 1
   where inbox.payload_hash = excluded.payload_hash
  returning id, message_id, status, duplicates, received_at
), aside as (
  insert into inbox_quarantine
         (receiver, message_id, payload, metadata, payload_hash)
  select $1, message_id, payload, metadata::jsonb, payload_hash
    from incoming
   where message_id not in (select message_id from kept)
  on conflict (receiver, message_id, payload_hash) do nothing
)
select id,
       message_id,
       duplicates = 0 as new,
       duplicates = 0 and status = 'running' as started,
       received_at
  from kept`

// A first delivery wakes its key: the oldest open message, the only one that could be
// claimed, becomes due if it waits for the outside. One that backs off after errors
// does not, so that no flood of messages defeats the backoff; nor does a repeated
// delivery wake anything.
const wakeKeys = `
update inbox
   set due_at = clock_timestamp()
 where id = any (array(
         select (select open.id
                   from inbox open
                  where open.receiver = $1
                    and open.ordering_key >= d.ordering_key
                    and open.ordering_key <= d.ordering_key
                    and open.status in ('pending', 'running')
                  order by open.ordering_key, open.id
                  limit 1)
           from unnest($2::text[], $3::text[]) as d (message_id, ordering_key)
          where (select n.received_in
                   from inbox n
                  where n.receiver = $1
                    and n.message_id = d.message_id) = pg_current_xact_id()))
   and coalesce(status = 'pending', false)
   and attempts = 0
   and waits > 0
   and due_at > clock_timestamp()`

// slotsFor is who has reserved slots for which messages of a page.
type slotsFor struct {
	holder   string
	lease    time.Duration
	passes   bool            // a dead letter does not block its key
	messages map[string]bool // by id
}

// storedRow is what became of a message that is not in quarantine.
type storedRow struct {
	ID        int64
	MessageID string
	New       bool
	Started   bool // in a reserved slot
	At        time.Time
}

// queueStore queues the reception of a page. Once the batch is committed, stored has
// been called for each layer with its messages and those of them that are kept.
func queueStore(b *pgx.Batch, receiver string, page []delivery, r slotsFor, stored func(layer []delivery, kept []storedRow)) {
	b.Queue(walkIndexes)
	all := layers(page)
	first := columnsOf(all[0], nil)
	b.Queue(lockOpen, receiver, first.ids, first.keys)
	for i, layer := range all {
		c := columnsOf(layer, r.messages)
		if i > 0 {
			clear(c.reserved)
		}
		b.Queue(store, receiver, c.ids, c.keys, c.types, c.payloads, c.metadata, c.hashes, r.holder, r.lease, r.passes, c.reserved).
			Query(func(rows pgx.Rows) error {
				kept, err := pgx.CollectRows(rows, pgx.RowToStructByPos[storedRow])
				if err != nil {
					return fmt.Errorf("store messages for %s: %w", receiver, err)
				}
				stored(layer, kept)
				return nil
			})
	}
	b.Queue(wakeKeys, receiver, first.ids, first.keys)
}

// count adds what became of a layer.
func (r *Reception) count(layer []delivery, kept []storedRow) {
	for _, k := range kept {
		if k.New {
			r.New++
		} else {
			r.Duplicates++
		}
	}
	r.Aside += len(layer) - len(kept)
}
