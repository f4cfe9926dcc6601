-- The rows of the charges $2, in place of the tables whose names they have: the facts and the
-- checks that follow read these. What they name with its schema, public, is the table itself.
-- Each row is found by an index, whatever the planner knows of the tables: offset 0 keeps a
-- probe a probe.
wanted as (
  select unnest($2::text[]) as stream_id
), ledger_events as (
  select e.*
    from wanted w
   cross join lateral (
         select txid, position, event_id, stream_id, version, type, webhook, merchant_id, data, occurred_at, recorded_at
           from ledger_events
          where stream_id = w.stream_id
         offset 0) e
), ledger_postings as (
  select p.*
    from wanted w
   cross join lateral (
         select stream_id, version, leg, merchant_id, debit, credit, amount, currency
           from ledger_postings
          where stream_id = w.stream_id
         offset 0) p
), held_orders as (
  select h.*
    from ledger_events e
   cross join lateral (
         select merchant_id, order_id, stream_id
           from held_orders
          where merchant_id = e.merchant_id
            and order_id = e.data ->> 'order_id'
            and stream_id = e.stream_id
         offset 0) h
   where e.version = 1
), reservations as (
  select r.*
    from wanted w
   cross join lateral (
         select charge_id, merchant_id, sku, quantity, status
           from reservations
          where charge_id = w.stream_id
         offset 0) r
), ordering_keys as ( -- of messages: the charge's, and one of each refund
  select stream_id as ordering_key
    from wanted
   union all
  select data ->> 'refund_id'
    from ledger_events
   where type like 'refund.requested.v%'
), outbox as ( -- a queue: what was received is not there
  select topic, message_id, metadata
    from outbox
   where topic = $3
     and metadata ->> 'ordering_key' in (select ordering_key from ordering_keys)
), inbox as (
  select i.*
    from ledger_events e
   cross join lateral (
         select receiver, message_id, ordering_key, type, status, fence, done_fence
           from inbox
          where message_id = e.event_id::text
         offset 0) i
   union all
  select i.*
    from ordering_keys k
   cross join lateral (
         select receiver, message_id, ordering_key, type, status, fence, done_fence
           from inbox
          where ordering_key = k.ordering_key
            and message_id not like '________-____-____-____-____________'
         offset 0) i
),
