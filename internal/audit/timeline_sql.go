package audit

// selectNamed reads the time and the charges that a name leads to. A name is a charge, else a refund or dispute,
// else a key; the last column is the name if it is neither of the first two.
const selectNamed = `
-- audit.selectNamed
with charge as (
  select stream_id
    from ledger_events
   where stream_id = $1
     and version = 1
     and $2 in ('', merchant_id)
), refunded as (
  select stream_id
    from ledger_events
   where type ~ '^(refund\.(requested|observed)|charge\.dispute_opened)\.v'
     and coalesce(data ->> 'refund_id', data ->> 'dispute_id') = $1
     and $2 in ('', merchant_id)
     and not exists (select from charge)
), keyed as (
  select distinct split_part(headers #>> '{Location,0}', '/', 4)
    from idempotency_keys
   where key = $1
     and $2 in ('', scope)
     and headers #>> '{Location,0}' like '/v1/charges/%'
     and not exists (select from charge)
     and not exists (select from refunded)
)
select clock_timestamp() at time zone 'UTC',
       array(table charge union all table refunded union all table keyed),
       case when not exists (select from charge) and not exists (select from refunded) then $1 end`

// selectKeyUses reads idempotency keys: the keys that were asked for by name, and all keys
// that led to one of the charges.
const selectKeyUses = `
-- audit.selectKeyUses
select created_at as at,
       'key'      as kind,
       case when location like '/v1/charges/%' then split_part(location, '/', 4) else '' end as charge_id,
       0          as version,
       operation  as what,
       scope      as who,
       jsonb_strip_nulls(jsonb_build_object(
         'key',         key,
         'key_hash',    left(encode(sha256(convert_to(key, 'UTF8')), 'hex'), 12),
         'status_code', status_code,
         'expires_at',  expires_at,
         'location',    nullif(location, ''))) as detail
  from idempotency_keys
 cross join lateral (select coalesce(headers #>> '{Location,0}', '') as location) l
 where (scope = $2 or $2 = '')
   and (key = $1
        or location like '/v1/charges/%' and split_part(location, '/', 4) = any($3))
 order by created_at, scope, operation, key`

// selectInbox reads, of each message, when it was received, the last delivery that was
// dropped, the claims that did not finish it, the last decision of an operator, and its
// end or, while there is none, its state. A discard takes a fence of its own, which is no
// claim. Of many claims some are not kept, so a successor is named only by the next fence. No
// index has the charge of every message: events lead to theirs by their ids, and
// inbox_not_of_events has the others, whose ordering key is the charge or one of its refunds. A holder is shown as its
// process, without what makes the start unique.
const selectInbox = `
-- audit.selectInbox
with keys as (
  select charge_id, charge_id as ordering_key
    from unnest($1::text[]) u(charge_id)
   union all
  select stream_id, data ->> 'refund_id'
    from ledger_events
   where stream_id = any($1)
     and type like 'refund.requested.v%'
)
select e.at,
       'inbox'        as kind,
       k.charge_id,
       0              as version,
       e.what,
       e.who,
       jsonb_build_object('message', i.id, 'type', i.type) || jsonb_strip_nulls(e.detail) as detail
  from inbox i
  join keys k using (ordering_key)
 cross join lateral (
       select 2 as step,
              (h.claim ->> 'at')::timestamptz as at,
              case
                when h.claim ->> 'lease_ended_at' is not null then 'taken over'
                when h.claim ->> 'error' is not null then 'failed'
                else 'released'
              end as what,
              i.receiver as who,
              h.claim - 'at' - 'claimed_at' || jsonb_build_object(
                'claimed_at',    coalesce((h.claim ->> 'claimed_at')::timestamptz, i.received_at),
                'holder',        split_part(h.claim ->> 'holder', '/', 1),
                'taken_over_by', case when h.claim ->> 'lease_ended_at' is not null
                                       and coalesce((i.history -> h.n::int ->> 'fence')::bigint, i.fence) = (h.claim ->> 'fence')::bigint + 1
                                      then split_part(coalesce(i.history -> h.n::int ->> 'holder', i.holder), '/', 1) end) as detail
         from jsonb_array_elements(i.history) with ordinality as h (claim, n)
       union all values
       (1, i.received_at, 'received', i.receiver,
        jsonb_build_object('message_id', i.message_id, 'duplicates', i.duplicates,
          'event_id', i.metadata ->> 'event_id', 'requested_by', i.metadata ->> 'requested_by')),
       (2, i.duplicated_at, 'duplicate', i.receiver,
        jsonb_build_object('duplicates', i.duplicates, 'dropped_by', 'inbox_message_once')),
       (2, i.decided_at, 'retried', i.decided_by,
        jsonb_build_object('receiver', i.receiver)),
       (3, case when i.status in ('done', 'discarded') then coalesce(i.finished_at, $2) else $2 end,
        case i.status when 'dead' then 'dead letter' else i.status end,
        case i.status when 'discarded' then i.decided_by else i.receiver end,
        jsonb_build_object(
          'claims',        i.fence,
          'attempts',      i.attempts,
          'waits',         i.waits,
          'deaths',        i.deaths,
          'last_error',    nullif(i.last_error, ''),
          'holder',        nullif(split_part(i.holder, '/', 1), ''),
          'claimed_at',    case when i.status in ('done', 'running') and i.fence > 0 then coalesce(i.claimed_at, i.received_at) end,
          'receiver',      case i.status when 'discarded' then i.receiver end,
          'behind',        case when i.status = 'pending' and not i.first then true end,
          'due_at',        case i.status when 'pending' then i.due_at end,
          'lease_ends_at', case i.status when 'running' then (select alive_until from inbox_holders h where h.receiver = i.receiver and h.holder = i.holder) end)))
       as e
 where i.id = any(array(
       select id
         from inbox
        where message_id = any(array(
              select event_id::text
                from ledger_events
               where stream_id = any($1)))
        union all
       select id
         from inbox
        where ordering_key = any(array(select ordering_key from keys))
          and message_id not like '________-____-____-____-____________'))
   and e.at is not null
   and (e.what <> 'retried' or i.status <> 'discarded')
 order by i.id, e.step`
