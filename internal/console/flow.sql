-- What the Flow page shows, in one row: counts of what is open, by partial indexes and up to a
-- bound, and the newest events. $1 are the receivers, $2 messages whose holder had gone.
with recent as (
  select stream_id, version, type, recorded_at,
         case when type like 'payment.captured.v%' then data ->> 'payment_intent' end as intent,
         coalesce(data ->> 'refund_id', data ->> 'event_id', '')                      as about
    from ledger_events
   order by txid desc, position desc
   limit 400
), open as (
  select m.*
    from unnest($1::text[]) as r (receiver)
   cross join lateral (
         select id, receiver, ordering_key, type, status, holder, attempts, deaths, waits, received_at, due_at
           from inbox
          where receiver = r.receiver
            and status in ('pending', 'running')
          order by ordering_key, id
          limit 1000) m
), unread as (
  select o.created_at
    from unnest(array['charges', 'outcomes']) as t (topic)
    left join outbox_offsets f
      on f.topic = t.topic
     and f.consumer_group = 'inbox'
   cross join lateral (
         select created_at
           from outbox
          where topic = t.topic
            and (transaction_id, "offset") > (coalesce(f.transaction_id, '0'), coalesce(f."offset", 0))
          order by transaction_id, "offset"
          limit 1000) o
)
select jsonb_build_object(
  'at',        clock_timestamp(),
  'sessions',  (select coalesce(jsonb_object_agg(application_name, n), '{}')
                  from (select application_name, count(*) as n
                          from pg_stat_activity
                         where datname = current_database()
                           and application_name like 'payonce-%'
                         group by application_name) a),
  'events',    (select coalesce(jsonb_agg(recent), '[]') from recent),
  'open',      (select coalesce(jsonb_agg(open order by due_at), '[]') from open),
  'followed',  (select coalesce(jsonb_agg(jsonb_build_object('id', id, 'status', status, 'holder', holder)), '[]')
                  from inbox where id = any ($2::bigint[])),
  'unread',    (select count(*) from unread),
  'unread_at', (select min(created_at) from unread),
  'dead',      (select count(*) from (select from inbox where status = 'dead' and id > 0 order by status, id limit 1000) d),
  'aside',     (select count(*) from (select from charges_set_aside limit 1000) a),
  'foreign',   (select count(*) from (select from inbox_quarantine limit 1000) q),
  'keys',      (select count(*) from (select from idempotency_keys limit 10001) k),
  'appended',  (select coalesce(max(position), 0) from ledger_events),
  'folded',    (select position from projections where state = 'live'))
