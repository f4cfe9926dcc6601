package inbox

// store stores first deliveries and counts repeated ones. It never fails because another
// transaction stores the same message, or a first message of the same key, at the same moment. A message that
// comes twice in one statement is an error.
//
//	firsts   messages of keys that have no open message become the first one
//	kept     the other messages wait behind the first one; a message that is known is counted
//	other    another payload under a known id is a dead letter of its own
//	heads    the first messages behind which a new one was stored
//
// A head that waits for an external service is due now, since the new message may be what it waits for.
// One that runs is marked as nudged: if its claim ends with a wait, it is due at once. A repeated head
// is always nudged: the nudge below could not change its row again. The lock orders
// this transaction before or after the end of the head, so one of the two promotes the new message.
//
// "(select id …) is null" is on purpose: the planner hashes "not exists", which reads all first
// messages. Rows are inserted in the order of their keys, and heads are locked by number. Two pages
// that repeat each other's messages may still deadlock: one of them is repeated.
const (
	store     = storeRows + `(values ($1::text, $2::text, $3::text, $4::text, $5::text, $6::bytea, $7::text, $8::bytea, $9::text, 1))` + storeTheRows
	storeMany = storeRows + `unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::bytea[], $9::text[]) with ordinality` + storeTheRows

	nudgedDue = `case when inbox.status = 'pending' and inbox.attempts = 0 and inbox.waits > 0 then least(inbox.due_at, clock_timestamp()) else inbox.due_at end`

	storeRows = `
-- inbox.storeRows
with incoming as (
  select d.*,
         d.unreadable = ''
         and row_number() over (partition by d.receiver, d.ordering_key order by d.place) = 1
         and (select f.id from inbox f where f.receiver = d.receiver and f.ordering_key = d.ordering_key and f.first) is null
         and (select b.id from inbox b
               where b.receiver = d.receiver and b.ordering_key >= d.ordering_key and b.ordering_key <= d.ordering_key and b.status = 'pending' and not b.first
               limit 1) is null as first
    from `
	storeTheRows = ` as d (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, unreadable, place)
), firsts as (
  insert into inbox
         (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, first)
  select receiver, message_id, ordering_key, partition_key, type, payload, metadata::jsonb, payload_hash, true
    from incoming
   where first
   order by ordering_key, place
  on conflict do nothing
  returning receiver, message_id, ordering_key
), kept as (
  insert into inbox
         (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, status, last_error)
  select receiver, message_id, ordering_key, partition_key, type, payload, metadata::jsonb, payload_hash,
         case when unreadable = '' then 'pending' else 'dead' end, nullif(unreadable, '')
    from incoming
   where not (first and (receiver, message_id, ordering_key) in (select receiver, message_id, ordering_key from firsts))
   order by ordering_key, place
  on conflict (message_id, receiver) do update
     set duplicates    = inbox.duplicates + 1,
         duplicated_at = clock_timestamp(),
         nudged        = inbox.first,
         due_at        = ` + nudgedDue + `
   where inbox.payload_hash = excluded.payload_hash
  returning receiver, message_id, ordering_key, status, xmax = '0' as new
), odd as (
  select *,
         'unreadable:' || encode(sha256(convert_to(message_id, 'UTF8') || payload_hash), 'hex') as name
    from incoming
   where (receiver, message_id) not in (select receiver, message_id from firsts union all select receiver, message_id from kept)
), other as (
  insert into inbox
         (receiver, message_id, ordering_key, type, payload, metadata, payload_hash, status, last_error)
  select receiver, name, name, '', payload, metadata::jsonb, payload_hash,
         'dead', 'the id ' || message_id || ' is known with another payload'
    from odd
  on conflict do nothing
  returning receiver, message_id
), heads as (
  select id
    from inbox
   where id = any (array(
           select (select id from inbox where receiver = kept.receiver and ordering_key = kept.ordering_key and first)
             from kept
            where new and status = 'pending'))
   order by id
     for no key update
), nudge as (
  update inbox
     set nudged = true,
         due_at = ` + nudgedDue + `
   where id = any (array(select id from heads))
     and coalesce(first, false)
)
select (select count(*) from firsts) + count(*) filter (where new and status = 'pending'),
       array(select odd.message_id from other join odd on (odd.receiver, odd.name) = (other.receiver, other.message_id)
              union all
             select message_id from kept where new and status = 'dead'),
       count(*) filter (where new and status = 'pending') > 0
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
