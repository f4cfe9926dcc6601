-- What the checks compare: rows for each charge, refund, outcome, key and message. Long as they
-- are, they stand in front of every check: PostgreSQL evaluates those that the check names, and
-- of them the columns that it reads.
charges as (
  select stream_id,
         count(*) filter (where type like 'payment.captured.v%')                                     as captures,
         count(*) filter (where type like 'charge.succeeded.v%')                                     as successes,
         count(*) filter (where type like 'charge.failed.v%')                                        as failures,
         bool_or(type like 'charge.requested.v%' and data ->> 'notify' = 'true')                     as notify
    from ledger_events
   group by stream_id
), refunds as (
  select stream_id,
         data ->> 'refund_id'                                                                        as refund_id,
         max(event_id::text) filter (where type like 'refund.requested.v%')                          as request,
         count(*) filter (where type ~ '^refund\.(requested|observed)\.v')                           as requests,
         count(*) filter (where type ~ '^refund\.(succeeded|failed|observed)\.v')                    as outcomes,
         count(*) filter (where type like 'refund.reversed.v%')                                      as reversals,
         min(version) filter (where type ~ '^refund\.(requested|observed)\.v')                       as requested_at,
         min(version) filter (where type not like 'refund.requested.v%')                             as attempted_at,
         min(version) filter (where type ~ '^refund\.(succeeded|observed)\.v')                       as succeeded_at,
         min(version) filter (where type like 'refund.reversed.v%')                                  as reversed_at,
         max(substring(data ->> 'amount' from '^[0-9]{1,18}$')::numeric)                             as amount,
         array_agg(distinct data ->> 'amount') filter (where data ->> 'amount' is not null)          as amounts,
         count(distinct data ->> 'provider_refund')                                                  as provider_refunds,
         bool_or(type ~ '^refund\.(requested|observed)\.v' and data ->> 'notify' = 'true')           as notify
    from ledger_events
   where type like 'refund.%'
   group by stream_id, data ->> 'refund_id'
), outcomes as ( -- reversals and disputes among them, each with its request
  select o.stream_id,
         o.event_id::text                           as event_id,
         coalesce(r.data ->> 'notify', '') = 'true' as notify
    from ledger_events o
    join ledger_events r
      on r.stream_id = o.stream_id
     and r.data ->> 'refund_id' is not distinct from o.data ->> 'refund_id'
     and r.type like any (array['charge.requested.v%', 'refund.requested.v%', 'refund.observed.v%'])
   where o.webhook
), notified as (
  select stream_id,
         data ->> 'event_id' as event_id,
         count(*)            as times
    from ledger_events
   where type like 'merchant.notified.v%'
   group by stream_id, data ->> 'event_id'
), requests as ( -- that a key accepts
  select stream_id,
         version,
         merchant_id,
         data ->> 'amount'                         as amount,
         coalesce(data ->> 'refund_id', stream_id) as id,
         regexp_replace(type, '\.v[0-9]+$', '')    as kind,
         '/v1/charges/' || stream_id || coalesce('/refunds/' || (data ->> 'refund_id'), '') as location
    from ledger_events
   where type like any (array['charge.requested.v%', 'charge.cancel\_requested.v%', 'refund.requested.v%'])
), keys as (
  select scope,
         operation,
         key,
         coalesce(headers #>> '{Location,0}', '') as location,
         body,
         status_code between 200 and 299 as accepted,
         case
           when operation = 'POST /v1/charges'              then 'charge.requested'
           when operation like 'POST /v1/charges/%/refunds' then 'refund.requested'
           when operation like 'POST /v1/charges/%/cancel'
             or operation = 'POST /v1/idempotency-keys/:key/abandon' then 'charge.cancel_requested'
         end as kind
    from idempotency_keys
), answers as ( -- An answer outlives its body: an expired one keeps its location.
  select k.kind,
         k.scope,
         k.operation,
         k.accepted,
         k.location,
         r.stream_id,
         r.id,
         r.merchant_id,
         k.accepted and k.body <> ''
           and (position(convert_to(format('"id":"%s"', r.id), 'UTF8') in k.body) = 0
                or r.amount is not null
                and position(convert_to(format('"amount":%s,', r.amount), 'UTF8') in k.body) = 0
                -- What was only accepted is pending. A forged body may be no text.
                or encode(k.body, 'escape') !~ '"currency":"[A-Z]{3}","status":"pending"') as about_another
    from keys k
    left join requests r using (kind, location)
), acceptances as (
  select r.kind,
         r.stream_id,
         r.id,
         count(k.key) as keys
    from requests r
    left join keys k using (kind, location)
   group by r.kind, r.stream_id, r.id, r.version
), sent as ( -- requests whose messages are in the outbox: they were not received, or are about to be deleted
  select o.message_id,
         o.metadata ->> 'type'         as type,
         o.metadata ->> 'ordering_key' as ordering_key
    from outbox o
   where o.metadata ->> 'type' ~ '\.v[0-9]+$'
), waiting as ( -- the messages that can still bring an outcome: any of a charge's, and a refund's own; a dead letter waits for an operator
  select case when type like 'refund.requested.v%' then message_id else ordering_key end as brings
    from inbox
   where status not in ('done', 'discarded')
     and receiver = 'fulfillment'
   union
  select case when type like 'refund.requested.v%' then message_id else ordering_key end
    from sent
), legs as ( -- each posting on both of its accounts
  select stream_id,
         version,
         merchant_id,
         leg.*
    from ledger_postings p
   cross join lateral (values (p.debit, p.amount, 0), (p.credit, 0, p.amount)) leg(account, debits, credits)
), held as (
  select merchant_id,
         sku,
         coalesce(sum(quantity) filter (where status = 'open'), 0) as reserved,
         coalesce(sum(quantity) filter (where status = 'sold'), 0) as sold
    from reservations
   group by merchant_id, sku
), supplies as ( -- what operators recorded of each article
  select merchant_id,
         subject                                                    as sku,
         (array_agg(supplied order by action_id desc))[1]           as supplied,
         bool_or(before ->> 'supplied' is distinct from previously) as broken
    from (
         select merchant_id,
                subject,
                action_id,
                before,
                after ->> 'supplied' as supplied,
                lag(after ->> 'supplied') over (partition by merchant_id, subject order by action_id) as previously
           from operator_actions
          where action = 'stock supply') a
   group by merchant_id, subject
), summed as (
  select txid,
         position
    from followers
   where name = 'balances'
)
