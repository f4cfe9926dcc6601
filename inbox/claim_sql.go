package inbox

// A claim takes messages for a holder: of each ordering key the oldest open one, and none
// while another one of the key runs. There are three statements, for what is due, for
// suspected poison messages, and for what is held back. The index inbox_one_running_per_key
// refuses whatever they miss.
//
// The plans of these statements are kept, so they must be right for any content of the
// table: "offset 0" and an order that exists in one index alone make each subquery a probe
// of one key, and CASE keeps the planner from using any index except the primary key.
//
// A claim reads a window of the messages, since any number of them may wait behind others of
// their keys. If it finds fewer than it could take, it also returns a row that is not
// claimed, 'skipped': the position behind which the next claim reads, or 0 at the end.

// window is how many messages a claim reads of those that are due, or held back in a
// partition.
const window = `1000`

// claimDue claims pending messages whose time has come and running ones whose lease has
// expired, but none that this holder still handles ($5), whose lease the next heartbeat
// renews. It reads behind the cursor ($9, $14), up to the time $15 if that is not null. A
// message for which its partition has no share ($11, $12; $13 for the others) loses its due
// time: it is held back. $10 messages are read, and $2 of those that fit are claimed. now(),
// unlike clock_timestamp(), can bound an index scan.
const claimDue = `
with seen as materialized (
  select id, due_at
    from inbox
   where receiver = $1
     and status in ('pending', 'running')
     and (due_at, id) > ($9, $14)
     and due_at <= least(now(), $15)
   order by due_at, id
   limit ` + window + `
), due as (
  select i.id, i.partition_key, i.status, i.due_at
    from seen
   cross join lateral (
           select i.id, i.partition_key, i.status, i.due_at
             from inbox i
            where i.id = seen.id
              and i.due_at <= now()
              and i.id <> all($5::bigint[])
              and case i.status
                  when 'pending' then ` + isFirstOfKey + `
                  when 'running' then i.deaths < 2 and ` + isSilent + `
                  end
              for update skip locked) i
   limit $10
), shared as (
  select due.id, due.due_at,
         due.status = 'running' or due.partition_key = ''
         or row_number() over (partition by due.partition_key order by due.due_at, due.id) <= coalesce(its.share, $13) as fits
    from due
    left join unnest($11::text[], $12::int[]) as its (partition_key, share) on its.partition_key = due.partition_key
), found as (
  select id, fits
    from (select id, fits, count(*) filter (where fits) over (order by due_at, id) as place from shared) s
   where not fits or place <= $2` + claimFound + `
union all
select 'skipped', coalesce(last.id, 0), 0, 0, 0, 0, '', '', '', '', '', '{}', coalesce(last.due_at, now())
  from (select count(*) as messages from due) due
  left join (select id, due_at from seen order by due_at, id offset ` + window + ` - 1) last on true
 where due.messages < $10`

// isSilent holds for a running message i whose holder went silent: a little longer than
// its lease, a part of the backoff that its id and fence select. If a message kills every
// process that takes it, the messages that ran beside it are soon claimed without it.
const isSilent = `i.due_at + make_interval(secs => (hashint8(i.id # i.fence) & 1023) / 1024.0
                 * least($7::float8, $6::float8 * power(2, least(i.deaths, 99)))) <= now()`

// isFirstOfKey holds for a pending message i that no message of its key blocks. A dead
// letter blocks it unless $8.
const isFirstOfKey = `not exists (
           select from inbox running
            where running.receiver = i.receiver and running.ordering_key = i.ordering_key and running.status = 'running'
           offset 0)
     and not exists (
           select from inbox older
            where older.receiver = i.receiver and older.ordering_key >= i.ordering_key and older.ordering_key <= i.ordering_key
              and older.status in ('pending', 'running') and older.id < i.id
            order by older.ordering_key, older.id
           offset 0)
     and ($8 or not exists (
           select from inbox dead
            where dead.receiver = i.receiver and dead.ordering_key >= i.ordering_key and dead.ordering_key <= i.ordering_key
              and dead.status = 'dead' and dead.id < i.id
            order by dead.ordering_key, dead.id
           offset 0))`

// claimFound claims what was found, for holder $3 with lease $4, and holds back what does
// not fit. The arrays keep it a probe of each row; for a join the planner may read the table.
const claimFound = `
), claimed as (
update inbox i
   set status     = case when i.id = any (f.fitting) then 'running' else 'pending' end,
       fence      = i.fence + (i.id = any (f.fitting))::int,
       attempts   = i.attempts + (i.id = any (f.fitting))::int,
       deaths     = case i.status when 'running' then i.deaths + 1 else 0 end,
       history    = case i.status when 'running' then ` + history + ` 'lease_ended_at', i.due_at) else i.history end,
       holder     = case when i.id = any (f.fitting) then $3 else i.holder end,
       claimed_at = case when i.id = any (f.fitting) then clock_timestamp() else i.claimed_at end,
       due_at     = case when i.id = any (f.fitting) then clock_timestamp() + $4::interval end
  from (select array(select id from found where fits) as fitting) f
 where i.id = any (array(select id from found))
returning case i.status when 'pending' then 'held back' else 'claimed' end, i.id, i.fence, i.attempts, i.deaths, i.waits,
          i.message_id, i.type, i.ordering_key, i.partition_key, i.payload, i.metadata, clock_timestamp()
)
select * from claimed`

// claimPoison claims suspected poison messages whose lease has expired, no more of them
// than their weights allow ($8). COALESCE keeps the planner from using any index except
// inbox_suspected_poison: without statistics the planner would read all that is due.
const claimPoison = `
with suspected as (
  select i.id, i.due_at, least(32, power(2, i.deaths - 2)) as weight
    from inbox i
   where i.receiver = $1
     and i.status = 'running'
     and i.deaths >= 2
     and i.id <> all($5::bigint[])
     and coalesce(` + isSilent + `, false)
   order by i.due_at
   limit least($2::bigint, $8::bigint)
     for update skip locked
), found as (
  select s.id, true as fits
    from (select id, sum(weight) over (order by due_at, id) as total from suspected) s
   where s.total <= $8::bigint` + claimFound

// claimHeldBack claims the oldest messages that are held back of each partition ($5), as
// many as its share ($7). Those up to $6 are skipped: they are not read, nor their dead index
// entries.
const claimHeldBack = `
with partitions as (
  select * from unnest($5::text[], $6::bigint[], $7::int[]) as p (partition_key, skipped, share)
), found as (
  select h.id, true as fits, p.partition_key
    from partitions p
   cross join lateral (
           select i.id
             from (` + heldBackOfPartition + ` limit ` + window + `) seen
            cross join lateral (
                    select i.id
                      from inbox i
                     where i.id = seen.id
                       and i.due_at is null
                       and case i.status when 'pending' then ` + isFirstOfKey + ` end
                       for update skip locked) i
            limit p.share) h
   limit $2` + claimFound + `
union all
select 'skipped', coalesce((` + heldBackOfPartition + ` offset ` + window + ` - 1 limit 1), 0), 0, 0, 0, 0, '', '', '', p.partition_key, '', '{}', now()
  from partitions p
 where (select count(*) from found) < $2
   and (select count(*) from found f where f.partition_key = p.partition_key) < p.share`

const heldBackOfPartition = `
                   select id
                     from inbox
                    where receiver = $1
                      and partition_key = p.partition_key
                      and status = 'pending'
                      and due_at is null
                      and id > p.skipped
                    order by receiver, partition_key, id`

// readDueTimes is read after a claim, in its transaction. It returns the present, when the
// next message becomes due that is not due yet, and the first due time at or after $2,
// which bounds the next claim: while a transaction holds an old snapshot, PostgreSQL keeps
// dead entries of inbox_due before the live ones, which each claim would read. After a full
// scan ($3) it also returns the partitions of which messages are held back, by any process.
const readDueTimes = `
select now(),
       (select due_at from inbox
         where receiver = $1 and status in ('pending', 'running') and due_at is not null and due_at > now()
         order by due_at
         limit 1),
       (select due_at from inbox
         where receiver = $1 and status in ('pending', 'running') and due_at is not null and due_at >= $2
         order by due_at
         limit 1),
       case when $3 then array(
         with recursive held (partition_key) as (
           (select partition_key from inbox
             where receiver = $1 and status = 'pending' and due_at is null
             order by receiver, partition_key
             limit 1)
            union all
           select (select i.partition_key from inbox i
                    where i.receiver = $1 and i.status = 'pending' and i.due_at is null and i.partition_key > held.partition_key
                    order by i.receiver, i.partition_key
                    limit 1)
             from held
            where held.partition_key is not null
         )
         select partition_key from held where partition_key is not null) end`
