package inbox

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A page is stored by short statements in one transaction: lockOldest, store for each layer
// of the page, wakeKeys.

// lockOldest locks what is stored already and the oldest open message of each key, before
// anything is written. Rows are locked by number, as group commits lock them, so two
// transactions that meet in several rows do not deadlock. While the oldest is locked no
// transaction ends it or makes it wait, and one that does so later sees this page.
const lockOldest = `
select id
  from inbox
 where id = any (array(
         select (select k.id from inbox k where k.receiver = $1 and k.message_id = d.message_id)
           from unnest($2::text[]) as d (message_id)
          union all
         select ` + oldestOpen + `
           from unnest($3::text[]) as d (ordering_key)))
 order by id
   for no key update`

// oldestOpen is the oldest open message of the key of d. The key is compared as a range, so
// that the order is that of inbox_open_by_key and not of a sort: one index entry is read,
// however many messages wait behind it.
const oldestOpen = `(select open.id from inbox open
                  where open.receiver = $1 and open.ordering_key >= d.ordering_key and open.ordering_key <= d.ordering_key
                    and open.status in ('pending', 'running')
                  order by open.ordering_key, open.id
                  limit 1)`

// store inserts a first delivery, counts a repeated one, and quarantines another payload
// under a known id. None of this raises an error when another transaction commits the
// same message.
//
// A delivery for which a slot is reserved ($12) is inserted as a claim would leave it:
// running, under the first fence, leased to the holder. The condition is that of a claim:
// no message of its key is open, and no dead letter blocks the key ($4). What this misses,
// because another transaction commits it at the same moment, is refused by the index
// inbox_one_running_per_key, with the whole page. A delivery that only its partition's
// share refused ($13) is held back: it has no due time. It has more than 40 lines since the
// insert, its conflict and the quarantine must see one snapshot.
const store = `
with incoming as (
  select d.*,
         d.reserved
         and ` + oldestOpen + ` is null
         and ($4 or (select dead.id
                       from inbox dead
                      where dead.receiver = $1 and dead.ordering_key >= d.ordering_key and dead.ordering_key <= d.ordering_key
                        and dead.status = 'dead'
                      order by dead.ordering_key, dead.id
                      limit 1) is null) as starts
    from unnest($5::text[], $6::text[], $7::text[], $8::text[], $9::bytea[], $10::text[], $11::bytea[], $12::boolean[], $13::boolean[], $14::text[])
    with ordinality as d (message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, reserved, held_back, unreadable, place)
), kept as (
  insert into inbox
         (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash,
          status, fence, attempts, holder, due_at, last_error)
  select $1, message_id, ordering_key, partition_key, type, payload, metadata::jsonb, payload_hash,
         case when starts then 'running' when unreadable <> '' then 'dead' else 'pending' end,
         starts::int,
         starts::int,
         case when starts then $2 end,
         case when not held_back then clock_timestamp() + case when starts then $3::interval else interval '0' end end,
         nullif(unreadable, '')
    from incoming
   order by place
  on conflict (receiver, message_id) do update
     set duplicates    = inbox.duplicates + 1,
         duplicated_at = clock_timestamp()
   where inbox.payload_hash = excluded.payload_hash
  returning id, message_id, status, duplicates, received_at
), quarantined as (
  insert into inbox_quarantine
         (receiver, message_id, payload, metadata, payload_hash)
  select $1, message_id, payload, metadata::jsonb, payload_hash
    from incoming
   where message_id not in (select message_id from kept)
  on conflict (receiver, message_id, payload_hash) do nothing
)
select id, message_id, duplicates = 0 as new, duplicates = 0 and status = 'running' as started, received_at
  from kept`

// storeHolder is the place of the holder among the arguments of store; Accept leaves it
// empty.
const storeHolder = 1

// wakeKeys makes the oldest open message of a key due if it waits for an external service:
// a first delivery of its key may be what it waits for. A message that backs off after
// errors stays where it is, so that a flood of messages does not defeat the backoff. A
// repeated delivery wakes nothing.
const wakeKeys = `
update inbox
   set due_at = clock_timestamp()
 where id = any (array(
         select ` + oldestOpen + `
           from unnest($2::text[], $3::text[]) as d (message_id, ordering_key)
          where (select n.received_in from inbox n where n.receiver = $1 and n.message_id = d.message_id) = pg_current_xact_id()))
   and coalesce(status = 'pending', false)
   and attempts = 0
   and waits > 0
   and due_at > clock_timestamp()`

// storedRow is what became of a message; it is zero for one that is quarantined.
type storedRow struct {
	ID        int64
	MessageID string
	New       bool
	Started   bool // in a reserved slot
	At        time.Time
}

// queueStore queues the reception of a page for a holder; without one nothing starts. When
// the last statement, which it returns, has run, each message has its stored row.
func queueStore(b *pgx.Batch, receiver, holder string, p Policy, page []*incoming) (last *pgx.QueuedQuery) {
	all := layers(page)
	ids := column(all[0], func(d *incoming) string { return d.ID })
	keys := column(all[0], func(d *incoming) string { return d.OrderingKey })
	b.Queue(lockOldest, receiver, ids, keys)
	for _, layer := range all {
		b.Queue(store, receiver, holder, p.Lease, p.DeadLetters == Pass,
			column(layer, func(d *incoming) string { return d.ID }),
			column(layer, func(d *incoming) string { return d.OrderingKey }),
			column(layer, func(d *incoming) string { return d.Partition }),
			column(layer, func(d *incoming) string { return d.Type }),
			column(layer, func(d *incoming) []byte { return d.Payload }),
			column(layer, func(d *incoming) string { return d.metadata }),
			column(layer, func(d *incoming) []byte { return d.hash }),
			column(layer, func(d *incoming) bool { return d.reserved }),
			column(layer, func(d *incoming) bool { return d.heldBack }),
			column(layer, func(d *incoming) string { return d.unreadable }),
		).Query(func(rows pgx.Rows) error {
			kept, err := pgx.CollectRows(rows, pgx.RowToStructByPos[storedRow])
			if err != nil {
				return fmt.Errorf("store messages for %s: %w", receiver, err)
			}
			byID := make(map[string]storedRow, len(kept))
			for _, row := range kept {
				byID[row.MessageID] = row
			}
			for _, d := range layer {
				d.stored = byID[d.ID]
			}
			return nil
		})
	}
	return b.Queue(wakeKeys, receiver, ids, keys)
}

// layers splits a page so that no layer has an id twice, in the page's order: the first
// delivery of each message, then the second of those that have one, and so on. One
// statement cannot update a row twice.
func layers(page []*incoming) [][]*incoming {
	var all [][]*incoming
	seen := make(map[string]int, len(page))
	for _, d := range page {
		n := seen[d.ID]
		seen[d.ID]++
		if n == len(all) {
			all = append(all, make([]*incoming, 0, len(page)))
		}
		all[n] = append(all[n], d)
	}
	return all
}

// column returns a column of the arrays from which a layer is stored.
func column[T any](layer []*incoming, of func(*incoming) T) []T {
	values := make([]T, len(layer))
	for i, d := range layer {
		values[i] = of(d)
	}
	return values
}
