-- console.flow
-- What live pages show, in one row: counts of what is open, by partial indexes and up to a bound,
-- and what the newest events say. A later event of a stream is never read without those between,
-- so these are the end of each stream. $1 are the receivers. $2 are messages that were
-- leased, or taken over, when this was read last: they may have ended since. $3 is the topic.
with recent as (
  select stream_id, version, recorded_at, regexp_replace(type, '\.v[0-9]+$', '') as name,
         data ->> 'payment_intent' as intent, coalesce(data ->> 'refund_id', data ->> 'event_id') as about
    from ledger_events
   order by txid desc, position desc
   limit 400
), open as (
  select m.*, (select type from ledger_events where stream_id = m.ordering_key order by version desc limit 1) as last
    from unnest($1::text[]) as r (receiver)
   cross join lateral (
         select id, receiver, ordering_key, type, status, split_part(holder, '/', 1) as holder, waits,
                case status
                  when 'running' then coalesce((select alive_until from inbox_holders h where h.receiver = r.receiver and h.holder = inbox.holder), claimed_at)
                  else due_at
                end as due_at
           from inbox
          where receiver = r.receiver
            and first
            and status in ('pending', 'running')
          order by ordering_key
          limit 500) m
), sessions as (
  select application_name as name, count(*) as n
    from pg_stat_activity
   where datname = current_database()
     and application_name like 'payonce-%'
   group by application_name
), leases as (
  select ordering_key as charge, type, holder, due_at,
         (extract(epoch from due_at - clock_timestamp()) * 1e9)::bigint as ends_in,
         not exists (select from sessions where name = 'payonce-worker ' || holder) as dark, id
    from open
   where status = 'running'
), takeovers as (
  select i.id, i.ordering_key as charge, split_part(h.claim ->> 'holder', '/', 1) as holder, (h.claim ->> 'at')::timestamptz as at,
         split_part(coalesce(i.history -> h.n::int ->> 'holder', i.holder, ''), '/', 1) as next
    from inbox i
   cross join jsonb_array_elements(i.history) with ordinality as h (claim, n)
   where i.id = any ($2::bigint[] || array(select id from open))
     and h.claim ->> 'lease_ended_at' is not null
     and (h.claim ->> 'at')::timestamptz > now() - interval '10 minutes'
   order by at desc
   limit 12
), unread as (
  select o.created_at
    from outbox o
   where topic = $3
   order by id
   limit 1000
), spans (span, began, ends) as (
  values ('inbox',        array['charge.requested'],                  array['charge.succeeded', 'charge.failed']),
         ('inventory',    array['charge.requested'],                  array['inventory.reserved', 'inventory.rejected']),
         ('payment',      array['inventory.reserved'],                array['payment.captured', 'payment.declined']),
         ('notification', array['charge.succeeded', 'charge.failed'], array['merchant.notified'])
), times as (
  select span, percentile_disc(array[0.5, 0.99]) within group (order by (extract(epoch from e.recorded_at - b.recorded_at) * 1e9)::bigint) as p50_and_p99
    from spans
    join recent b on b.name = any (began)
    join recent e on e.name = any (ends) and e.stream_id = b.stream_id
   group by span
), counts (rate, names) as (
  values ('accepted',  '{charge.requested,refund.requested,charge.cancel_requested}'::text[]),
         ('messages',  '{charge.requested,refund.requested,charge.cancel_requested,charge.succeeded,charge.failed,refund.succeeded,refund.failed}'),
         ('inventory', '{inventory.reserved,inventory.rejected}'),
         ('payment',   '{payment.captured,payment.declined,refund.succeeded,refund.failed}'),
         ('attempts',  '{payment.attempt_failed,refund.attempt_failed}'),
         ('called',    '{payment.captured,payment.declined,refund.succeeded,refund.failed,payment.attempt_failed,refund.attempt_failed}'),
         ('notified',  '{merchant.notified}'),
         ('events',    (select array_agg(distinct name) from recent))
), rates as ( -- over ten seconds, or what the events cover of them
  select rate, count(*) / greatest(1, case when (select count(*) from recent) < 400 then 10 else
                                      least(10, extract(epoch from now() - (select min(recorded_at) from recent))) end) as n
    from counts
    join recent on name = any (names) and recorded_at > now() - interval '10 s'
   group by rate
), quick (place, mark, names) as (
  values (1, 'one capture per charge',                          '{payment.captured}'::text[]),
         (2, 'one charge per captured payment intent',          '{payment.captured}'),
         (3, 'one outcome per charge',                          '{charge.succeeded,charge.failed}'),
         (4, 'one outcome per refund',                          '{refund.succeeded,refund.failed}'),
         (5, 'the merchant was notified once of every outcome', '{merchant.notified}')
), marks (place, name, checked, violated, examples) as (
  select place, mark, count(about), count(*) filter (where n > 1), array_agg(about) filter (where n > 1)
    from (select place, mark, case place when 2 then intent when 4 then about when 5 then about else stream_id end as about, count(stream_id) as n
            from quick
            left join recent on name = any (names)
           group by place, mark, 3) each
   group by place, mark
   union all
  select 0, 'streams have no gap', count(*), count(*) filter (where n <> last - first + 1), array_agg(stream_id) filter (where n <> last - first + 1)
    from (select stream_id, count(*) as n, min(version) as first, max(version) as last from recent group by stream_id) s
   union all
  select 6, 'one worker for each charge''s message', count(*), count(*) filter (where n > 1), array_agg(ordering_key) filter (where n > 1)
    from (select receiver, ordering_key, count(*) as n from open where status = 'running' group by receiver, ordering_key) r
   union all
  select 7, 'no message is overdue', count(*), count(*) filter (where due_at < now() - interval '1 minute'), array_agg(id::text) filter (where due_at < now() - interval '1 minute')
    from open
   union all
  select 8, 'no message is a dead letter', count(*), count(*), array_agg(id::text)
    from (select id from inbox where status = 'dead' and id > 0 order by status, id limit 1000) d
)
select jsonb_build_object(
  'at',        clock_timestamp(),
  'sessions',  (select coalesce(jsonb_object_agg(name, n), '{}') from sessions),
  'recent',    (select count(*) from recent),
  'leases',    (select coalesce(jsonb_agg(leases order by due_at), '[]') from leases),
  'takeovers', (select coalesce(jsonb_agg(takeovers order by at desc), '[]') from takeovers),
  'followed',  (select coalesce(jsonb_agg(id), '[]') from (select id from leases union select id from takeovers) f),
  'at_step',   (select coalesce(jsonb_object_agg(step, n), '{}')
                  from (select case when receiver = 'resend' then 'notification' when receiver <> $1[1] then receiver
                                   when last like 'charge.requested.%' then 'inventory' else 'payment' end as step, count(*) as n
                          from open
                         group by step) s),
  'open',      (select count(*) from open),
  'waiting',   (select count(*) from open where waits > 0),
  'rates',     (select jsonb_object_agg(rate, n) from rates),
  'times',     (select jsonb_object_agg(span, p50_and_p99) from times),
  'quick',     (select jsonb_agg(jsonb_build_object('name', name, 'checked', checked, 'violated', violated, 'examples', examples[1:5]) order by place) from marks),
  'dead',      (select violated from marks where place = 8),
  'unread',    (select count(*) from unread),
  'waited',    (select (extract(epoch from clock_timestamp() - min(created_at)) * 1e9)::bigint from unread),
  'keys',      (select count(*) from (select from idempotency_keys limit 10001) k),
  'appended',  (select coalesce(max(position), 0) from (select position from ledger_events order by txid desc, position desc limit 1) newest))
