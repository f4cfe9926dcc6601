package inbox

// The statements of this package leave the planner one plan each (TestPlans_doNotDependOnStatistics in migrations):
//
//	(select id …) is null          probes the index once; "not exists" may be hashed over all first messages
//	id = any (array(select …))     finds rows by their numbers; a subquery may be joined in another way
//	key >= k and key <= k          ordered by key and id it reads inbox_behind; with "=" it may read the primary key
//	coalesce(condition, false)     is the same where no column is null, but no partial index answers it: it is checked
//	                               on the row as it is once locked
//	(select max(…)), bool_or(…)    an aggregate is one value, which is joined to nothing
const (
	// firstOf is the number of the first message of a key k, oldestBehind that of the oldest one which waits behind it.
	firstOf      = `(select f.id from inbox f where f.receiver = k.receiver and f.ordering_key = k.ordering_key and f.first)`
	oldestBehind = `(select b.id
           from inbox b
          where b.receiver = k.receiver
            and b.ordering_key >= k.ordering_key
            and b.ordering_key <= k.ordering_key
            and b.status = 'pending'
            and not b.first
          order by b.ordering_key, b.id
          limit 1)`
)

// store stores first deliveries and counts repeated ones. Unlike promote it never fails because another transaction
// stores the same message, or a first one of its key, at once. No message may come twice in one statement.
//
//	incoming   marks the oldest message here of each key that has none first or behind
//	firsts     inserts these as first, unless the id is known or another transaction is faster
//	kept       inserts the others, behind the first one or as dead letters; counts a known one, and nudges it if it is first
//	odd        are in neither: their ids are known with another payload
//	other      inserts these as dead letters under names of their own
//	heads      locks the first messages behind which kept has inserted one. The lock comes before or after the end of such
//	           a message, so one of the two transactions promotes the new one
//	nudge      makes heads due that wait for an external service, since the new message may be what they wait for; one that
//	           runs is due at once if its claim ends with a wait
//
// It returns the number of new messages, the ids of dead letters, and whether a new message waits behind another one.
// Rows are inserted in the order of their keys, and heads are locked by number. Two pages that repeat each other's
// messages may still deadlock: one of them is repeated.
const (
	store     = storeRows + `(values ($1::text, $2::text, $3::text, $4::text, $5::text, $6::bytea, $7::text, $8::bytea, $9::text, 1))` + storeTheRows
	storeMany = storeRows + `unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::bytea[], $9::text[]) with ordinality` + storeTheRows

	nudgedDue = `case when inbox.status = 'pending' and inbox.attempts = 0 and inbox.waits > 0 then least(inbox.due_at, clock_timestamp()) else inbox.due_at end`

	storeRows = `
-- inbox.storeRows
with incoming as (
  select k.*,
         k.unreadable = ''
         and row_number() over (partition by k.receiver, k.ordering_key order by k.place) = 1
         and ` + firstOf + ` is null
         and ` + oldestBehind + ` is null as first
    from `
	storeTheRows = ` as k (receiver, message_id, ordering_key, partition_key, type, payload, metadata, payload_hash, unreadable, place)
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
           select ` + firstOf + `
             from kept k
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

// promote makes the oldest message behind first, after each store and end, if its key has none. Of two at once,
// inbox_one_first_per_key refuses one, whose batch is repeated. Operators, and transactions that do not see each other's
// messages, leave keys without a first one to promoteStranded, once a second.
const (
	promote     = promoteKeys + `(values ($1::text, $2::text)) as k (receiver, ordering_key)` + keysWithoutFirst
	promoteMany = promoteKeys + `unnest($1::text[], $2::text[]) as k (receiver, ordering_key)` + keysWithoutFirst

	promoteKeys = `
-- inbox.promoteKeys
update inbox
   set first  = true,
       due_at = greatest(due_at, now())
 where id = any (array(
         select ` + oldestBehind + `
           from `
	keysWithoutFirst = `
          where ` + firstOf + ` is null))
   and coalesce(status = 'pending' and not first, false)`
)
