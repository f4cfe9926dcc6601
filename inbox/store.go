package inbox

// store stores first deliveries and counts repeated ones, in the order of their keys. Another payload under a known
// id is stored as a dead letter of its own; one that comes at the same moment is refused, and is known when it comes
// again. Of two transactions that store the first message of a key at the same moment, one is refused too
// (inbox_one_first_per_key). A message that comes twice in one statement is an error.
//
//	kept    a message whose key has no open one is first, others wait behind it; one that is known is counted
//	heads   the first messages behind which a new one was stored
//
// A head that waits for an external service is due now, since the new message may be what it waits for.
// One that runs is marked as nudged: if its claim ends with a wait, it is due at once. So is a head that is
// repeated: a statement changes a row once, and another message of the page may nudge it. The lock orders
// this transaction before or after the end of the head, so one of the two promotes the new message.
//
// "(select id …) is null" is on purpose: the planner hashes "not exists", which reads all first
// messages. Heads are locked by number. Two pages that repeat each other's messages may still deadlock: one of
// them is repeated.
const (
	store     = storeRows + `(values ($1::text, $2::text, $3::text, $4::text, $5::text, $6::bytea, $7::text, $8::bytea, $9::text, 1))` + storeTheRows
	storeMany = storeRows + `unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::bytea[], $9::text[]) with ordinality` + storeTheRows

	nudgedDue = `case when inbox.status = 'pending' and inbox.attempts = 0 and inbox.waits > 0 then least(inbox.due_at, clock_timestamp()) else inbox.due_at end`

	storeRows = `
-- inbox.storeRows
with incoming as (
  select d.receiver, d.place, d.payload, d.metadata, d.payload_hash,
         d.message_id                                             as given,
         coalesce(odd, d.message_id)                              as message_id,
         coalesce(odd, d.ordering_key)                            as ordering_key,
         case when odd is null then d.partition_key else '' end   as partition_key,
         case when odd is null then d.type else '' end            as type,
         case when odd is null then nullif(d.unreadable, '') else 'the id ' || d.message_id || ' is known with another payload' end as unreadable
    from `
	storeTheRows = ` as d (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, unreadable, place)
    left join lateral (
           select 'unreadable:' || encode(sha256(convert_to(d.message_id, 'UTF8') || d.payload_hash), 'hex') as odd
             from inbox i
            where i.message_id = d.message_id
              and i.receiver = d.receiver
              and i.payload_hash <> d.payload_hash
           offset 0) as known
      on true
), kept as (
  insert into inbox
         (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, status, last_error, first)
  select receiver, message_id, ordering_key, partition_key, type, payload, metadata::jsonb, payload_hash,
         case when unreadable is null then 'pending' else 'dead' end,
         unreadable,
         unreadable is null
         and row_number() over (partition by receiver, ordering_key order by place) = 1
         and (select f.id from inbox f where f.receiver = i.receiver and f.ordering_key = i.ordering_key and f.first) is null
         and (select b.id from inbox b
               where b.receiver = i.receiver and b.ordering_key >= i.ordering_key and b.ordering_key <= i.ordering_key and b.status = 'pending' and not b.first
               limit 1) is null
    from incoming i
   order by ordering_key, place
  on conflict (message_id, receiver) do update
     set duplicates    = case when inbox.payload_hash = excluded.payload_hash then inbox.duplicates + 1 end, -- null is refused
         duplicated_at = clock_timestamp(),
         nudged        = inbox.first,
         due_at        = ` + nudgedDue + `
  returning receiver, message_id, ordering_key, xmax = '0' and status = 'dead' as dead, xmax = '0' and status = 'pending' as new, first
), heads as (
  select id
    from inbox
   where id = any (array(
           select (select id from inbox where receiver = kept.receiver and ordering_key = kept.ordering_key and first)
             from kept
            where new and not first))
   order by id
     for no key update
), nudge as (
  update inbox
     set nudged = true,
         due_at = ` + nudgedDue + `
   where id = any (array(select id from heads))
     and coalesce(first, false)
)
select count(*) filter (where new),
       array(select given from incoming join kept using (receiver, message_id) where dead),
       count(*) filter (where new and not first) > 0
  from kept`
)

// promote makes the oldest pending message of a key first if the key has none, after a transaction
// has stored or ended messages. An operator's decision leaves a key without a first message, and so may two
// transactions that do not see each other's messages: promoteStranded finds such keys.
const (
	promote     = promoteKeys + `(values ($1::text, $2::text)) as k (receiver, ordering_key)` + keysWithoutFirst
	promoteMany = promoteKeys + `unnest($1::text[], $2::text[]) as k (receiver, ordering_key)` + keysWithoutFirst

	promoteKeys = `
-- inbox.promoteKeys
update inbox
   set first  = true,
       due_at = greatest(due_at, now())
 where id = any (array(
         select (select b.id from inbox b
                  where b.receiver = k.receiver and b.ordering_key >= k.ordering_key and b.ordering_key <= k.ordering_key and b.status = 'pending' and not b.first
                  order by b.ordering_key, b.id
                  limit 1)
           from `
	keysWithoutFirst = `
          where (select f.id from inbox f where f.receiver = k.receiver and f.ordering_key = k.ordering_key and f.first) is null))
   and coalesce(status = 'pending' and not first, false)`
)
